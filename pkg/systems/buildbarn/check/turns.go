package check

import (
	"context"
	"slices"
	"sync"
)

// turns limits the number of concurrent checks, in total and per namespace. Waiting namespaces alternate, so that a
// namespace with many or slow checks does not delay the others.
type turns struct {
	mu      sync.Mutex
	free    int
	most    int                        // per namespace
	busy    map[string]int             // turns in use, by namespace
	waiting map[string][]chan struct{} // by namespace, in order; a channel is closed when its turn comes
	order   []string                   // the waiting namespaces, the next one first
}

func newTurns(n, most int) *turns {
	return &turns{free: n, most: most, busy: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// take waits for a turn of the namespace, which the caller must give back. It returns an error if ctx ends first.
func (t *turns) take(ctx context.Context, namespace string) error {
	mine := make(chan struct{})
	t.mu.Lock()
	if len(t.waiting[namespace]) == 0 {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], mine)
	t.next()
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-mine: // the turn came at the same moment
		t.done(namespace)
	default:
		t.leave(namespace, mine)
	}
	return context.Cause(ctx)
}

func (t *turns) give(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done(namespace)
}

func (t *turns) done(namespace string) {
	t.free++
	if t.busy[namespace]--; t.busy[namespace] == 0 {
		delete(t.busy, namespace)
	}
	t.next()
}

// next hands out turns, with the lock held.
func (t *turns) next() {
	for t.free > 0 {
		i := slices.IndexFunc(t.order, func(namespace string) bool { return t.busy[namespace] < t.most })
		if i < 0 {
			return
		}
		namespace := t.order[i]
		mine := t.waiting[namespace][0]
		t.leave(namespace, mine)
		if len(t.waiting[namespace]) > 0 { // the namespace moves behind the others
			t.order = append(slices.DeleteFunc(t.order, func(n string) bool { return n == namespace }), namespace)
		}
		t.free--
		t.busy[namespace]++
		close(mine)
	}
}

// leave removes a waiter, with the lock held.
func (t *turns) leave(namespace string, mine chan struct{}) {
	t.waiting[namespace] = slices.DeleteFunc(t.waiting[namespace], func(c chan struct{}) bool { return c == mine })
	if len(t.waiting[namespace]) == 0 {
		delete(t.waiting, namespace)
		t.order = slices.DeleteFunc(t.order, func(n string) bool { return n == namespace })
	}
}
