package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Drain ends the containers of all pods gracefully and gives back what they shared, and returns once that is done. The pods
// stay in the API, and none begins any more. tell is called with each pod that had something running, once it ended.
func (m *Manager) Drain(ctx context.Context, tell func(*corev1.Pod)) error {
	m.mu.Lock()
	m.draining = true
	m.mu.Unlock()
	workers := m.all()
	running := map[*worker]bool{}
	for _, w := range workers {
		w.mu.Lock()
		for _, c := range w.m.containersOf(w.uid) {
			running[w] = running[w] || c.State == "running"
		}
		if w.drained == nil {
			w.drained = make(chan struct{})
			// What a pod that ended gave back is not all: an earlier process may have left its shim.
			w.released = false
			w.wakeLocked()
		}
		w.mu.Unlock()
	}
	// In the order in which they end, so that tell's caller knows which are left.
	drained := make(chan *worker, len(workers))
	for _, w := range workers {
		go func() {
			select {
			case <-w.drained:
				drained <- w
			case <-ctx.Done():
			}
		}()
	}
	for range workers {
		select {
		case w := <-drained:
			if running[w] {
				tell(w.pod)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// closeOnce closes a channel that may be nil or closed already. Called with the worker's lock held.
func closeOnce(c chan struct{}) {
	if c == nil {
		return
	}
	select {
	case <-c:
	default:
		close(c)
	}
}
