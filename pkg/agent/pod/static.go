package pod

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
	"github.com/coracle-dev/coracle/pkg/agent/static"
)

var _ static.Pods = (*Manager)(nil)

// StartStatic implements static.Pods. The API has no such pod, only its mirror.
func (m *Manager) StartStatic(p *corev1.Pod) {
	m.mu.Lock()
	if m.draining || m.stopped || m.workers[p.UID] != nil {
		m.mu.Unlock()
		return
	}
	w := newWorker(m, p)
	w.api.static = true
	for _, c := range m.containers.of(p.UID) { // no status of it was stored anywhere
		if !c.StartedAt.IsZero() && c.StartedAt.Before(w.start) {
			w.start = c.StartedAt
		}
	}
	m.workers[p.UID] = w
	m.mu.Unlock()
	if m.guard.Do("pod admission", w.admit, "pod", p.Namespace+"/"+p.Name) != nil {
		w.refuseUnchecked()
	}
	w.loop.wake()
}

// StopStatic implements static.Pods.
func (m *Manager) StopStatic(uid types.UID) {
	m.mu.Lock()
	w := m.workers[uid]
	if w == nil { // of an earlier process
		p := m.containers.pods()[uid]
		if p == nil {
			p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		}
		w = newWorker(m, p)
		w.api.static = true
		m.workers[uid] = w
	}
	m.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.api.gone = true
	w.loop.wake()
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
	if old == nil || mirror == nil || old.UID != mirror.UID || !apiequality.Semantic.DeepEqual(mirror.Status, w.status.answer) {
		w.status.sent = nil // the mirror is new, or somebody else wrote the status
	}
	w.api.mirror = mirror
	w.loop.wake()
}

// LeftStatic implements static.Pods.
func (m *Manager) LeftStatic() map[types.UID]types.NamespacedName {
	out := map[types.UID]types.NamespacedName{}
	m.containers.each(func(c runtime.Container) {
		if c.Labels[labelSource] == static.FromFile {
			out[types.UID(c.PodUID)] = types.NamespacedName{Namespace: c.Labels[labelNamespace], Name: c.Labels[labelPodName]}
		}
	})
	return out
}

// stored returns the pod in the API to which the status is written, or nil. Called with the lock held.
func (w *worker) stored() *corev1.Pod {
	if w.api.static {
		return w.api.mirror
	}
	return w.api.pod
}

// forAPI returns the status to be written to the pod in the API. That of a mirror is ours, whatever others wrote. Called with the lock held.
func (w *worker) forAPI(stored *corev1.Pod) corev1.PodStatus {
	if !w.api.static {
		return overlay(&stored.Status, w.status.want)
	}
	theirs := stored.Status
	theirs.Phase = w.status.want.Phase
	s := overlay(&theirs, w.status.want)
	s.ObservedGeneration = stored.Generation
	for i := range s.Conditions {
		if owned(s.Conditions[i].Type) {
			s.Conditions[i].ObservedGeneration = stored.Generation
		}
	}
	return s
}

// trusted returns a pod for those who go by the annotations of static pods: one of the API has none of them.
func (w *worker) trusted(p *corev1.Pod) *corev1.Pod {
	claims := func(key, _ string) bool { return strings.HasPrefix(key, "kubernetes.io/config.") }
	if w.api.static {
		return p
	}
	for key := range p.Annotations {
		if claims(key, "") {
			out := *p
			out.Annotations = maps.Clone(p.Annotations)
			maps.DeleteFunc(out.Annotations, claims)
			return &out
		}
	}
	return p
}
