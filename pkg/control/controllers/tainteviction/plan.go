package tainteviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/coracle-dev/coracle/pkg/control/toleration"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Plan reports whether these taints of a node evict a pod, and after which delay, possibly 0. since returns when a
// taint was added. As upstream, the toleration of a pod that was bound later begins when it was bound. Otherwise
// the pod and its replacements would be evicted at once.
func Plan(p *corev1.Pod, taints []corev1.Taint, since func(*corev1.Taint) time.Time,
	now time.Time) (leaves bool, in time.Duration) {
	for i := range taints {
		t := &taints[i]
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		stay, forever, tolerated := time.Duration(0), true, false
		for j := range p.Spec.Tolerations {
			tol := &p.Spec.Tolerations[j]
			if !tol.ToleratesTaint(klog.Logger{}, t, true) {
				continue
			}
			// If several tolerations match a taint, the shortest applies.
			if tol.TolerationSeconds != nil {
				d := toleration.Seconds(*tol.TolerationSeconds)
				if forever || d < stay {
					stay = d
				}
				forever = false
			}
			tolerated = true
		}
		if tolerated && forever {
			continue
		}
		left := time.Duration(0)
		if tolerated {
			from := since(t)
			if at := came(p); at.After(from) {
				from = at
			}
			left = max(from.Add(stay).Sub(now), 0)
		}
		if !leaves || left < in {
			in = left
		}
		leaves = true
	}
	return leaves, in
}

// came returns when a pod was bound.
func came(p *corev1.Pod) time.Time {
	if c := podstate.Condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return p.CreationTimestamp.Time
}
