package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Drain gracefully stops all containers, releases their shared resources, and returns when that is done. The pods stay
// in the API, and none starts from then on. Pods that serve plugins stop last, since the others' volumes and devices
// need them. report is called after each stop of a pod that had a running container.
func (m *Manager) Drain(ctx context.Context, report func(*corev1.Pod)) error {
	m.mu.Lock()
	m.draining = true
	m.mu.Unlock()
	for uid := range m.LeftStatic() { // static pods with unreadable manifests have no worker yet
		m.continued(uid)
	}
	var users, servers []*worker
	for _, w := range m.all() {
		if m.serves(w) {
			servers = append(servers, w)
		} else {
			users = append(users, w)
		}
	}
	if err := m.drain(ctx, users, report); err != nil {
		return err
	}
	return m.drain(ctx, servers, report)
}

func (m *Manager) serves(w *worker) bool {
	w.mu.Lock()
	p := w.api.pod
	w.mu.Unlock()
	return m.c.Serves != nil && p != nil && m.c.Serves(p)
}

func (m *Manager) drain(ctx context.Context, workers []*worker, report func(*corev1.Pod)) error {
	running := map[*worker]bool{}
	// Report in the order of stopping, so that the caller can show the remaining pods.
	ended := make(chan *worker, len(workers))
	for _, w := range workers {
		for _, c := range m.containers.of(w.uid) {
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

// drain begins to stop the pod. It returns a channel that is closed when nothing of the pod runs.
func (w *worker) drain() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end.drained == nil {
		w.end.drained = make(chan struct{})
		// Release terminated pods again: an earlier process may have left their shims.
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
