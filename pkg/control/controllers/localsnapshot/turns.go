package localsnapshot

import (
	"sync"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// perNode is how many copies, and how many other things, a node is asked for at once, so that one that is slow or
// silent does not keep others waiting. Nodes make two copies at once.
const perNode = 2

// turns are what nodes are being asked for, and the requests that wait for that.
type turns struct {
	mu   sync.Mutex
	busy map[turn]*queue
}

// turn is a node, and whether it is asked to copy.
type turn struct {
	node string
	copy bool
}

type queue struct {
	asked   int
	waiting map[engine.Request]bool
}

// take begins a turn, or lets a request wait until another one ends.
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

// end ends a turn and returns the requests that waited, of which some may wait again.
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
