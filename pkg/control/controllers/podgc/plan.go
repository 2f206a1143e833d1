package podgc

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

const (
	// TerminatedThreshold is how many terminated pods are retained, upstream's --terminated-pod-gc-threshold.
	TerminatedThreshold = 12500
	// Quarantine is how long a node must be missing before its pods are deleted, as upstream.
	Quarantine = 40 * time.Second
)

// PlanTerminated returns the terminated pods beyond threshold: evicted ones first, then the oldest, as upstream.
func PlanTerminated(terminated []*corev1.Pod, threshold int) []*corev1.Pod {
	if len(terminated) <= threshold {
		return nil
	}
	out := slices.Clone(terminated)
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		if evicted(a) != evicted(b) {
			if evicted(a) {
				return -1
			}
			return 1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return out[:len(out)-threshold]
}

// abandoned reports whether a node is tainted as out of service and not Ready. As upstream, terminating pods on it
// count as gone (KEP-2268), so that their volumes can be attached elsewhere.
func abandoned(n *corev1.Node) bool { return nodestate.OutOfService(n) && !nodestate.Ready(n) }

func evicted(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted"
}

// PlanNode returns how long to wait before deleting the pods of a missing node. 0 means delete them now.
func PlanNode(missingSince, now time.Time) time.Duration {
	return max(missingSince.Add(Quarantine).Sub(now), 0)
}

type change struct {
	terminated  bool // there is one more terminated pod
	unscheduled bool // deleted before it was scheduled, so no agent deletes it
	newOnNode   bool // bound now, to a node that may be missing
	terminating bool // deleted now, on a node that may be out of service
}

// classify compares a pod before and after a change. was is nil for a new pod.
func classify(was, is *corev1.Pod) change {
	return change{
		terminated:  podstate.Ended(is) && (was == nil || !podstate.Ended(was)),
		unscheduled: is.Spec.NodeName == "" && is.DeletionTimestamp != nil,
		terminating: is.Spec.NodeName != "" && is.DeletionTimestamp != nil && (was == nil || was.DeletionTimestamp == nil),
		newOnNode:   is.Spec.NodeName != "" && (was == nil || was.Spec.NodeName == ""),
	}
}
