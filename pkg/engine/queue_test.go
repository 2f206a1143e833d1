package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/workqueue"
	"pgregory.net/rapid"
)

func newTestQueue() *queue {
	return newQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[Request](time.Hour, time.Hour),
		newMetrics(nil).of("test", 1))
}

// TestTheQueueHandsOutAsClientGos checks that the queue returns the same requests in the same order as client-go's.
func TestTheQueueHandsOutAsClientGos(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ours, theirs := newTestQueue(), workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Request]{})
		defer theirs.ShutDown()
		names := rapid.IntRange(1, 2*roomy).Draw(t, "names")
		var taken []Request
		add := func(i int) {
			r := RequestFor("", fmt.Sprint(i))
			ours.Add(r)
			theirs.Add(r)
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"add", "burst", "get", "get all", "done", "done all"}).Draw(t, "step") {
			case "add":
				add(rapid.IntRange(0, names).Draw(t, "name"))
			case "burst":
				for i := range names {
					add(i)
				}
			case "get", "get all":
				for range rapid.SampledFrom([]int{1, theirs.Len()}).Draw(t, "n") {
					if theirs.Len() == 0 {
						break
					}
					want, _ := theirs.Get()
					got, ended := ours.Get()
					require.False(t, ended)
					require.Equal(t, want, got)
					taken = append(taken, got)
				}
			case "done", "done all":
				for range rapid.SampledFrom([]int{1, len(taken)}).Draw(t, "n") {
					if len(taken) == 0 {
						break
					}
					ours.Done(taken[0])
					theirs.Done(taken[0])
					taken = taken[1:]
				}
			}
			require.Equal(t, theirs.Len(), ours.Len())
		}
	})
}

// TestAnIdleQueueIsSmall checks that a backlog leaves no memory behind.
func TestAnIdleQueueIsSmall(t *testing.T) {
	q := newTestQueue()
	for i := range 2 * roomy {
		q.Add(RequestFor("", fmt.Sprint(i)))
	}
	var taken []Request
	for q.Len() > 0 {
		r, _ := q.Get()
		taken = append(taken, r)
	}
	for _, r := range taken {
		q.Done(r)
	}
	require.Equal(t, [3]any{line{}, room[time.Time]{}, room[time.Time]{}}, [3]any{q.line, q.added, q.taken})
}

// TestAQueueThatEnds checks that an ending queue hands out the queued requests and, if drained, waits for their
// workers.
func TestAQueueThatEnds(t *testing.T) {
	q := newTestQueue()
	q.AddAfter(RequestFor("", "later"), time.Hour)
	q.Add(RequestFor("", "a"))
	q.Add(RequestFor("", "b"))
	a, _ := q.Get()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		q.ShutDownWithDrain()
	}()
	b, ended := q.Get()
	require.Equal(t, []any{"a", "b", false}, []any{a.Name, b.Name, ended})
	_, ended = q.Get()
	require.True(t, ended)
	require.True(t, q.ShuttingDown())
	q.Add(RequestFor("", "c"))
	require.Zero(t, q.Len()+q.waiting())
	q.Done(b)
	select {
	case <-drained:
		t.Fatal("a worker is busy")
	default:
	}
	q.Done(a)
	<-drained
	q.ShutDown()
}
