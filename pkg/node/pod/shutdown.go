package pod

import (
	"context"
	"sync"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/host/shutdown"
)

var _ shutdown.Pods = (*Manager)(nil)

// The kubelet's reasons and messages for pods that a shutdown of the machine ends or refuses.
const (
	shutdownReason  = "Terminated"
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
	refusedReason   = "NodeShutdown"
	refusedMessage  = "Pod was rejected as the node is shutting down."
)

func (m *Manager) shuttingDown() bool { return m.c.ShuttingDown != nil && m.c.ShuttingDown() }

// Terminate implements shutdown.Pods. The deadline also applies to pods that already end for another reason.
func (m *Manager) Terminate(uid types.UID, by time.Time) <-chan struct{} {
	w := m.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end.by = by
	if w.end.down == nil {
		w.end.down = make(chan struct{})
	}
	if !w.api.gone && w.end.verdict == nil && !w.ended() {
		w.end.verdict = &Verdict{Reason: shutdownReason, Message: shutdownMessage, Disrupted: true}
	}
	w.loop.wake()
	return w.end.down
}

// Flush implements shutdown.Pods.
func (m *Manager) Flush(ctx context.Context) {
	var writing sync.WaitGroup
	for _, w := range m.all() {
		if w.shown() {
			continue
		}
		writing.Go(func() {
			if _, err := w.postOnce(ctx); err != nil {
				m.log.Warn("could not write pod status before the machine shuts down", "uid", w.uid, "error", err)
			}
		})
	}
	writing.Wait()
}

// shown reports whether the API has the pod's current status, or has no such pod.
func (w *worker) shown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := w.stored()
	return pod == nil || w.api.gone || w.status.want == nil || apiequality.Semantic.DeepEqual(pod.Status, w.forAPI(pod))
}

// Resume handles a cancelled shutdown. It returns the static pods that it ended, since no controller replaces them.
func (m *Manager) Resume() (ended []types.UID) {
	for _, w := range m.all() {
		w.mu.Lock()
		if v := w.end.verdict; w.api.static && v != nil && (v.Reason == shutdownReason || v.Reason == refusedReason) {
			ended = append(ended, w.uid)
		}
		w.mu.Unlock()
		w.loop.wake()
	}
	return ended
}
