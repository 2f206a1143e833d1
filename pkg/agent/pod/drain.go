package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

// Drain ends the containers of all pods gracefully releases what they shared, and returns once that is done. The pods
// stay in the API, and none starts any more. report is called with each pod that had a running container, once it ended.
func (m *Manager) Drain(ctx context.Context, report func(*corev1.Pod)) error {
	m.mu.Lock()
	m.draining = true
	m.mu.Unlock()
	workers := m.all()
	running := map[*worker]bool{}
	// In the order in which they end, so that the caller knows which are left.
	ended := make(chan *worker, len(workers))
	for _, w := range workers {
		for _, c := range m.containersOf(w.uid) {
			running[w] = running[w] || c.State == runtime.Running
		}
		drained := w.drain()
		go func() {
			select {
			case <-drained:
				ended <- w
			case <-ctx.Done():
			}
		}()
	}
	for range workers {
		select {
		case w := <-ended:
			if running[w] {
				w.mu.Lock()
				p := w.api.pod
				w.mu.Unlock()
				report(p)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// drain begins to end the pod because the node stops, and returns a channel that is closed once nothing of it runs.
func (w *worker) drain() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end.drained == nil {
		w.end.drained = make(chan struct{})
		// A pod that ended may have released not everything: an earlier process may have left its shim.
		w.held.released = false
		w.loop.wake()
	}
	return w.end.drained
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
