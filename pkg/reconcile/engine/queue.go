package engine

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// queue is a delaying work queue that needs no goroutine and no ticker while idle: it has one timer
// per delayed request, the earliest wins. It is unbounded, but holds each request at most once.
type queue struct {
	workqueue.TypedInterface[Request]
	limiter workqueue.TypedRateLimiter[Request]
	handles handles

	mu      sync.Mutex
	delayed map[Request]*delay    // nil after ShutDown
	added   map[Request]time.Time // requests waiting for a worker, since when
	taken   map[Request]time.Time // requests in progress, since when
}

type delay struct {
	timer *time.Timer
	at    time.Time
}

func newQueue(limiter workqueue.TypedRateLimiter[Request], h handles) *queue {
	return &queue{
		// A queue without a name has no metrics, and so no ticker: metrics are collected here.
		TypedInterface: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Request]{}),
		limiter:        limiter,
		handles:        h,
		delayed:        map[Request]*delay{},
		added:          map[Request]time.Time{},
		taken:          map[Request]time.Time{},
	}
}

// Add puts r into the queue, unless it is in it.
func (q *queue) Add(r Request) {
	q.mu.Lock()
	if _, waits := q.added[r]; !waits && q.delayed != nil {
		q.added[r] = time.Now()
		q.handles.adds.Inc()
	}
	q.mu.Unlock()
	q.TypedInterface.Add(r)
}

// Get blocks for the next request.
func (q *queue) Get() (r Request, shutdown bool) {
	r, shutdown = q.TypedInterface.Get()
	if shutdown {
		return r, shutdown
	}
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if at, ok := q.added[r]; ok {
		q.handles.queued.Observe(now.Sub(at).Seconds())
		delete(q.added, r)
	}
	q.taken[r] = now
	return r, false
}

// Done marks a request returned by Get as processed.
func (q *queue) Done(r Request) {
	q.mu.Lock()
	if at, ok := q.taken[r]; ok {
		q.handles.worked.Observe(time.Since(at).Seconds())
		delete(q.taken, r)
	}
	q.mu.Unlock()
	q.TypedInterface.Done(r)
}

// waiting is the number of delayed requests.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.delayed)
}

// inProgress is for how long workers have had their requests, together and the longest of them.
func (q *queue) inProgress(now time.Time) (all, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, at := range q.taken {
		d := now.Sub(at)
		all += d
		longest = max(longest, d)
	}
	return all, longest
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

func (q *queue) AddRateLimited(r Request) {
	q.handles.retries.Inc()
	q.AddAfter(r, q.limiter.When(r))
}

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
