package target

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

type waiter struct {
	key    string
	notify func()
}

// Do calls f with the cluster's client and a timeout of patience. It returns an UnreachableError if the cluster does
// not answer, and after a request that was lost: then a probe decides whether it is an outage. If maxRequests calls are
// running, it returns ErrBusy and calls again later, once for each key, when the caller may retry. A notified caller
// must call Next when done, even if it did not call Do.
func (t *Target) Do(ctx context.Context, key string, again func(),
	f func(context.Context, client.WithWatch) error) error {
	t.mu.Lock()
	switch {
	case !t.status.Ready:
		defer t.mu.Unlock()
		return &UnreachableError{Reason: t.status.Reason, Message: t.status.Message}
	case t.running >= maxRequests:
		t.wait(key, again)
		t.mu.Unlock()
		return ErrBusy
	}
	t.running++
	t.mu.Unlock()
	defer t.release()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := f(ctx, t.client)
	if err != nil && ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return err // the process is stopping
	}
	if err != nil && t.config.Local == nil && Lost(err) {
		t.doubt(err)
		reason, message := explain(err, t.Status().Server)
		return &UnreachableError{Reason: reason, Message: message, Asked: true}
	}
	return err
}

// Busy reports whether Do would return ErrBusy now. If so, it calls again later as Do does. Callers use it before they
// prepare an expensive request.
func (t *Target) Busy(key string, again func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.status.Ready || t.running < maxRequests {
		return false
	}
	t.wait(key, again)
	return true
}

// wait adds a waiter, once for each key. The caller holds the lock.
func (t *Target) wait(key string, again func()) {
	if !t.waits[key] {
		t.waits[key] = true
		t.waiting = append(t.waiting, waiter{key, again})
	}
}

func (t *Target) release() {
	t.mu.Lock()
	t.running--
	t.mu.Unlock()
	t.Next()
}

// Next notifies the next waiter if fewer than maxRequests calls are running. Without it the queue would stop at a
// notified caller that sends no request.
func (t *Target) Next() {
	t.mu.Lock()
	if len(t.waiting) == 0 || t.running >= maxRequests {
		t.mu.Unlock()
		return
	}
	next := t.waiting[0]
	t.waiting[0] = waiter{}
	t.waiting = t.waiting[1:]
	if delete(t.waits, next.key); len(t.waiting) == 0 { // free the memory of the longest backlog
		t.waiting, t.waits = nil, map[string]bool{}
	}
	t.mu.Unlock()
	next.notify()
}

// end ends the connection, and notifies all waiters.
func (t *Target) end() {
	t.cancel()
	t.mu.Lock()
	all := t.waiting
	t.waiting = nil
	clear(t.waits)
	t.mu.Unlock()
	for _, w := range all {
		w.notify()
	}
}

// UnreachableError means that a cluster does not answer.
type UnreachableError struct {
	Reason, Message string
	// Asked means that this request was sent and lost, perhaps because of its content. Otherwise it was not sent.
	Asked bool
}

func (e *UnreachableError) Error() string { return e.Message }
