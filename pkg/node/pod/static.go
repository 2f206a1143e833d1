package pod

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/pod/static"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

var _ static.Pods = (*Manager)(nil)

// StartStatic implements static.Pods. The API has only the pod's mirror.
func (m *Manager) StartStatic(p *corev1.Pod, file string) {
	m.mu.Lock()
	// static.Manager is notified when the existing worker ends, and calls this again.
	if m.draining || m.stopped || m.workers[p.UID] != nil {
		m.mu.Unlock()
		return
	}
	w := newWorker(m, p)
	w.api.static, w.api.file = true, file
	for _, c := range m.containers.of(p.UID) { // its status was not stored
		if !c.StartedAt.IsZero() && c.StartedAt.Before(w.start) {
			w.start = c.StartedAt
		}
	}
	m.workers[p.UID] = w
	m.mu.Unlock()
	m.begin(w)
}

// StopStatic implements static.Pods.
func (m *Manager) StopStatic(uid types.UID) {
	w := m.continued(uid)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.api.gone = true
	w.loop.wake()
}

// continued returns a static pod's worker. For a pod of an earlier process it adds one that can only stop the pod.
func (m *Manager) continued(uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[uid]
	if w == nil {
		p := m.containers.pods()[uid]
		if p == nil {
			p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		}
		w = newWorker(m, p)
		w.api.static, w.api.gone = true, true
		m.workers[uid] = w
	}
	return w
}

// SetMirror implements static.Pods.
func (m *Manager) SetMirror(uid types.UID, mirror *corev1.Pod) {
	w := m.worker(uid)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.api.mirror
	if old != nil && mirror != nil && old.UID == mirror.UID && older(mirror.ResourceVersion, old.ResourceVersion) {
		return
	}
	if old == nil || mirror == nil || old.UID != mirror.UID ||
		!apiequality.Semantic.DeepEqual(mirror.Status, w.status.answer) {
		w.status.sent = nil // the mirror is new, or another client wrote its status
	}
	w.api.mirror = mirror
	w.loop.wake()
}

// LeftStatic implements static.Pods.
func (m *Manager) LeftStatic() map[types.UID]static.Left {
	out := map[types.UID]static.Left{}
	m.containers.each(func(c runtime.Container) {
		if c.Labels[labelSource] == static.FromFile {
			name := types.NamespacedName{Namespace: c.Labels[labelNamespace], Name: c.Labels[labelPodName]}
			out[types.UID(c.PodUID)] = static.Left{Name: name, File: c.Labels[labelFile]}
		}
	})
	return out
}

// stored returns the pod in the API whose status is written, or nil. Called with the lock held.
func (w *worker) stored() *corev1.Pod {
	if w.api.static {
		return w.api.mirror
	}
	return w.api.pod
}

// forAPI returns the status to write. In a mirror the agent's phase always wins. Called with the lock held.
func (w *worker) forAPI(stored *corev1.Pod) corev1.PodStatus {
	if !w.api.static {
		return overlay(&stored.Status, w.status.want, w.m.c.Parts)
	}
	theirs := stored.Status
	theirs.Phase = w.status.want.Phase
	s := overlay(&theirs, w.status.want, w.m.c.Parts)
	s.ObservedGeneration = stored.Generation
	for i := range s.Conditions {
		if owned(s.Conditions[i].Type, w.m.c.Parts) {
			s.Conditions[i].ObservedGeneration = stored.Generation
		}
	}
	return s
}

// trusted returns the pod for code that trusts annotations of static pods: pods of the API lose them.
func (w *worker) trusted(p *corev1.Pod) *corev1.Pod {
	if w.api.static {
		return p
	}
	return static.WithoutSource(p)
}
