package engine

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// queue is a delaying work queue that needs no goroutine or ticker while idle: a delayed request has a timer, and the
// earliest time wins. It is unbounded, but holds each request at most once. A request that is added while a worker has
// it is handed out again afterwards. An idle queue is small, even after a long backlog.
type queue struct {
	limiter workqueue.TypedRateLimiter[Request]
	handles handles

	mu      sync.Mutex
	some    sync.Cond // there is a request in line, or the queue has ended
	idle    sync.Cond // no worker has a request, or waiters may return anyway
	line    line
	added   room[time.Time] // pending requests, since when: queued, or with a worker that will get them again
	taken   room[time.Time] // requests that workers have, since when
	delayed room[*delay]
	ended   bool
	drains  bool
}

type delay struct {
	timer *time.Timer
	at    time.Time
}

func newQueue(limiter workqueue.TypedRateLimiter[Request], h handles) *queue {
	q := &queue{limiter: limiter, handles: h}
	q.some.L, q.idle.L = &q.mu, &q.mu
	return q
}

// Add adds r unless the queue already holds it.
func (q *queue) Add(r Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || q.added.has(r) {
		return
	}
	q.added.set(r, time.Now())
	q.handles.adds.Inc()
	if !q.taken.has(r) {
		q.line.push(r)
		q.some.Signal()
	}
}

// Get blocks for the next request.
func (q *queue) Get() (r Request, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.line.len() == 0 && !q.ended {
		q.some.Wait()
	}
	if q.line.len() == 0 {
		return r, true
	}
	r = q.line.pop()
	now := time.Now()
	q.handles.queued.Observe(now.Sub(q.added.m[r]).Seconds())
	q.added.remove(r)
	q.taken.set(r, now)
	return r, false
}

// Done marks a request returned by Get as processed.
func (q *queue) Done(r Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if at, ok := q.taken.m[r]; ok {
		q.handles.worked.Observe(time.Since(at).Seconds())
		q.taken.remove(r)
	}
	if q.added.has(r) {
		q.line.push(r)
		q.some.Signal()
	}
	if len(q.taken.m) == 0 {
		q.idle.Broadcast()
	}
}

// Len returns the number of requests that wait for a worker.
func (q *queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.line.len()
}

// waiting returns the number of delayed requests.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.delayed.m)
}

// inProgress returns how long workers have had their requests: the sum and the longest.
func (q *queue) inProgress(now time.Time) (all, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, at := range q.taken.m {
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
	if q.ended {
		return
	}
	at := time.Now().Add(d)
	if was := q.delayed.m[r]; was != nil {
		if !at.Before(was.at) {
			return
		}
		was.timer.Stop()
	}
	next := &delay{at: at}
	q.delayed.set(r, next)
	next.timer = time.AfterFunc(d, func() {
		q.mu.Lock()
		due := q.delayed.m[r] == next
		if due {
			q.delayed.remove(r)
		}
		q.mu.Unlock()
		if due {
			q.Add(r)
		}
	})
}

func (q *queue) AddRateLimited(r Request) {
	q.handles.retries.Inc()
	q.AddAfter(r, q.limiter.When(r))
}

func (q *queue) Forget(r Request)          { q.limiter.Forget(r) }
func (q *queue) NumRequeues(r Request) int { return q.limiter.NumRequeues(r) }

// ShutDown ends the queue. Nothing is added any more, and workers end after the queued requests.
func (q *queue) ShutDown() { q.end(false) }

// ShutDownWithDrain is ShutDown, but waits for the workers' last requests.
func (q *queue) ShutDownWithDrain() { q.end(true) }

// ShuttingDown reports whether the queue has ended.
func (q *queue) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ended
}

func (q *queue) end(drain bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended, q.drains = true, drain
	for _, d := range q.delayed.m {
		d.timer.Stop()
	}
	q.delayed = room[*delay]{}
	q.some.Broadcast()
	q.idle.Broadcast()
	for q.drains && len(q.taken.m) > 0 {
		q.idle.Wait()
	}
}

var _ workqueue.TypedRateLimitingInterface[Request] = (*queue)(nil)

// roomy is the size above which a room or a line frees its memory when it becomes empty.
const roomy = 256

// room is a map that is replaced when it becomes empty, since a map keeps the memory of its largest size.
type room[V any] struct {
	m    map[Request]V
	most int
}

func (o *room[V]) has(r Request) bool {
	_, ok := o.m[r]
	return ok
}

func (o *room[V]) set(r Request, v V) {
	if o.m == nil {
		o.m = map[Request]V{}
	}
	o.m[r] = v
	o.most = max(o.most, len(o.m))
}

func (o *room[V]) remove(r Request) {
	if delete(o.m, r); len(o.m) == 0 && o.most > roomy {
		*o = room[V]{}
	}
}

// line is a list of requests in order.
type line struct {
	list []Request
	next int // index of the first remaining request
}

func (l *line) len() int { return len(l.list) - l.next }

func (l *line) push(r Request) {
	if l.next > roomy && l.next > len(l.list)/2 { // instead of growing
		n := copy(l.list, l.list[l.next:])
		clear(l.list[n:])
		l.list, l.next = l.list[:n], 0
	}
	l.list = append(l.list, r)
}

func (l *line) pop() (r Request) {
	r, l.list[l.next] = l.list[l.next], r
	l.next++
	switch {
	case l.len() > 0:
	case cap(l.list) > roomy:
		*l = line{}
	default:
		l.list, l.next = l.list[:0], 0
	}
	return r
}
