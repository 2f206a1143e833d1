package localsnapshot

import (
	"sync"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// perNode is the maximum number of concurrent copies on a node, and of other requests to it, so that a slow or
// silent node does not block others. A node makes two copies at a time.
const perNode = 2

// turns limits the concurrent requests to each node and queues the rest.
type turns struct {
	mu   sync.Mutex
	busy map[turn]*queue
}

// turn identifies a limit: a node, and whether the request is a copy.
type turn struct {
	node string
	copy bool
}

type queue struct {
	asked   int
	waiting map[engine.Request]bool
}

// take begins a turn and returns true, or queues the request until another turn ends.
func (t *turns) take(of turn, req engine.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.busy[of]
	if q == nil {
		if t.busy == nil {
			t.busy = map[turn]*queue{}
		}
		q = &queue{waiting: map[engine.Request]bool{}}
		t.busy[of] = q
	}
	if q.asked == perNode {
		q.waiting[req] = true
		return false
	}
	q.asked++
	return true
}

// end ends a turn. It returns all queued requests, some of which may have to wait again.
func (t *turns) end(of turn) map[engine.Request]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.busy[of]
	waited := q.waiting
	q.waiting = map[engine.Request]bool{}
	if q.asked--; q.asked == 0 {
		delete(t.busy, of)
	}
	return waited
}
