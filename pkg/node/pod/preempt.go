package pod

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
)

// The kubelet's reason and message for preempted pods.
const (
	preempting       = "Preempting"
	preemptedMessage = "Preempted in order to admit critical pod"
)

// Victims returns a minimal set of other pods that must end so that the node can run a critical pod; none if that is
// impossible, or if resources are not the obstacle. Pods of a better QoS class are spared first, then pods of higher
// priority, then pods that request less memory. It is a pure function.
func Victims(p *corev1.Pod, node *corev1.Node, others []*corev1.Pod) []*corev1.Pod {
	if v := Admit(p, node, others); v == nil || !strings.HasPrefix(v.Reason, "OutOf") {
		return nil
	}
	var stay, may []*corev1.Pod
	for _, o := range others {
		if !preemptable(o, p) {
			stay = append(stay, o)
		} else {
			may = append(may, o)
		}
	}
	if Admit(p, node, stay) != nil {
		return nil
	}
	quality := map[corev1.PodQOSClass]int{corev1.PodQOSGuaranteed: -2, corev1.PodQOSBurstable: -1}
	memory := func(p *corev1.Pod) int64 {
		q := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})[corev1.ResourceMemory]
		return q.Value()
	}
	slices.SortStableFunc(may, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(quality[a.Status.QOSClass], quality[b.Status.QOSClass]),
			cmp.Compare(priority(b), priority(a)), cmp.Compare(memory(a), memory(b)))
	})
	var out []*corev1.Pod
	for _, o := range may {
		if Admit(p, node, append(slices.Clip(stay), o)) == nil {
			stay = append(stay, o)
		} else {
			out = append(out, o)
		}
	}
	return out
}

// preemptable reports whether the critical pod by may end a pod: it is not critical, or has a lower priority and is not
// static, since no API server could create a static pod again.
func preemptable(victim, by *corev1.Pod) bool {
	return !eviction.Critical(victim) || !static.IsStatic(victim) && priority(victim) < priority(by)
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// preempt ends the victims and lets the pod start once they are gone. The wait is recorded first, for the next process.
func (w *worker) preempt(victims []*corev1.Pod) {
	others := make(map[types.UID]time.Time, len(victims))
	for _, v := range victims {
		others[v.UID] = time.Now().Add(graceOf(v) + roomMargin)
	}
	w.m.rooms.set(w.uid, others)
	for uid := range others {
		if v := w.m.worker(uid); v != nil {
			v.makeRoom()
		}
	}
	w.waitFor(others)
}

// goOnWaiting resumes the wait for the victims that an earlier process began to end for this pod.
func (w *worker) goOnWaiting() {
	others := w.m.rooms.of(w.uid)
	if others == nil {
		return
	}
	w.mu.Lock()
	waits, refused := w.end.waits, w.end.verdict != nil
	w.mu.Unlock()
	switch {
	case waits:
	case refused || len(w.m.containers.of(w.uid)) > 0:
		w.m.rooms.set(w.uid, nil)
	default:
		w.waitFor(others)
	}
}

func (w *worker) waitFor(others map[types.UID]time.Time) {
	w.mu.Lock()
	w.end.waits = true
	w.mu.Unlock()
	w.m.goRun(func() { w.awaitRoom(w.m.ctx, others) })
}

func (w *worker) awaitRoom(ctx context.Context, others map[types.UID]time.Time) {
	for uid, late := range others {
		if !w.m.awaitEnd(ctx, uid, late) {
			return
		}
	}
	w.m.rooms.set(w.uid, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end.waits = false
	w.loop.wake()
}

// awaitEnd waits until a victim is gone, or for a victim that the agent does not know until all pods are listed, but
// not beyond late. It returns false when ctx is done.
func (m *Manager) awaitEnd(ctx context.Context, uid types.UID, late time.Time) bool {
	v := m.worker(uid)
	if v == nil {
		timer := time.NewTimer(time.Until(late))
		defer timer.Stop()
		select {
		case <-m.listed:
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
		if v = m.worker(uid); v == nil {
			return true
		}
	}
	ended := v.makeRoom() // an earlier process may have died before doing so
	if ended == nil {
		return true
	}
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// makeRoom ends the pod within its own grace period. It returns a channel that is closed when the pod's resources
// are released, or nil if the pod has ended or ends for another reason.
func (w *worker) makeRoom() <-chan struct{} {
	p, evicted, now := w.giveWay()
	if now {
		w.m.event(p, "", corev1.EventTypeWarning, preempting, preemptedMessage)
		w.loop.wake()
	}
	return evicted
}

func (w *worker) giveWay() (p *corev1.Pod, evicted <-chan struct{}, now bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.api.gone || w.end.verdict != nil && w.end.verdict.Evicted {
		return nil, w.end.evicted, false
	}
	if w.end.verdict != nil || w.ended() {
		return nil, nil, false
	}
	w.end.verdict = &Verdict{
		Reason:    preempting,
		Message:   preemptedMessage,
		Evicted:   true,
		Preempted: true,
		Disrupted: true,
	}
	return w.api.pod, w.end.evicted, true
}
