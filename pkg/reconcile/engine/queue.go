package engine

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// queue is a work queue with delays that keeps no goroutine and no ticker while idle: one timer
// per delayed request, the earliest wins. It is unbounded, but holds each request at most once.
type queue struct {
	workqueue.TypedInterface[Request]
	limiter workqueue.TypedRateLimiter[Request]

	mu      sync.Mutex
	delayed map[Request]*delay // nil after ShutDown
}

type delay struct {
	timer *time.Timer
	at    time.Time
}

func newQueue(limiter workqueue.TypedRateLimiter[Request]) *queue {
	return &queue{
		// A queue without a name keeps no metrics, and so no ticker.
		TypedInterface: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Request]{}),
		limiter:        limiter,
		delayed:        map[Request]*delay{},
	}
}

func (q *queue) AddAfter(r Request, d time.Duration) {
	if d <= 0 {
		q.Add(r)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.delayed == nil {
		return
	}
	at := time.Now().Add(d)
	if was := q.delayed[r]; was != nil {
		if !at.Before(was.at) {
			return
		}
		was.timer.Stop()
	}
	next := &delay{at: at}
	q.delayed[r] = next
	next.timer = time.AfterFunc(d, func() {
		q.mu.Lock()
		if q.delayed[r] != next {
			q.mu.Unlock()
			return
		}
		delete(q.delayed, r)
		q.mu.Unlock()
		q.Add(r)
	})
}

func (q *queue) AddRateLimited(r Request)  { q.AddAfter(r, q.limiter.When(r)) }
func (q *queue) Forget(r Request)          { q.limiter.Forget(r) }
func (q *queue) NumRequeues(r Request) int { return q.limiter.NumRequeues(r) }
func (q *queue) ShutDown()                 { q.stop(); q.TypedInterface.ShutDown() }
func (q *queue) ShutDownWithDrain()        { q.stop(); q.TypedInterface.ShutDownWithDrain() }

func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.delayed {
		d.timer.Stop()
	}
	q.delayed = nil
}

var _ workqueue.TypedRateLimitingInterface[Request] = (*queue)(nil)
