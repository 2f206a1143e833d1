package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// queues are our queue and client-go's, which it replaces.
var queues = map[string]func() workqueue.TypedRateLimitingInterface[Request]{
	"own": func() workqueue.TypedRateLimitingInterface[Request] { return newTestQueue() },
	"client-go": func() workqueue.TypedRateLimitingInterface[Request] {
		return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[Request](time.Hour,
			time.Hour))
	},
}

func backlog(n int) []Request {
	list := make([]Request, n)
	for i := range list {
		list[i] = Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: fmt.Sprint("pod-", i)}}
	}
	return list
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkQueueBacklog queues a Job's pods at once and handles them one by one. retained-B is the memory of the idle
// queue.
func BenchmarkQueueBacklog(b *testing.B) {
	list := backlog(10_000)
	for name, make := range queues {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var retained int64
			for b.Loop() {
				q := make()
				b.StopTimer()
				before := heap()
				b.StartTimer()
				for _, r := range list {
					q.Add(r)
				}
				for range list {
					r, _ := q.Get()
					q.Done(r)
				}
				b.StopTimer()
				retained = heap() - before
				q.ShutDown()
				b.StartTimer()
			}
			b.ReportMetric(float64(retained), "retained-B")
		})
	}
}

// BenchmarkQueueDelayed delays every request of a backlog, as after errors, and ends the queue.
func BenchmarkQueueDelayed(b *testing.B) {
	list := backlog(10_000)
	for name, make := range queues {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q := make()
				for _, r := range list {
					q.AddAfter(r, time.Hour)
				}
				q.ShutDown()
			}
		})
	}
}

// BenchmarkIdleQueues measures goroutines and bytes of fifty idle queues, about as many as a server has.
func BenchmarkIdleQueues(b *testing.B) {
	for name, make := range queues {
		b.Run(name, func(b *testing.B) {
			var goroutines int
			var bytes int64
			for b.Loop() {
				before, goroutinesBefore := heap(), runtime.NumGoroutine()
				var all []workqueue.TypedRateLimitingInterface[Request]
				for range 50 {
					all = append(all, make())
				}
				bytes, goroutines = heap()-before, runtime.NumGoroutine()-goroutinesBefore
				for _, q := range all {
					q.ShutDown()
				}
			}
			b.ReportMetric(float64(goroutines), "goroutines")
			b.ReportMetric(float64(bytes), "B")
		})
	}
}
