package podgc

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Most is how many ended pods are kept; Quarantine how long a node must be gone before its pods are given up.
const (
	Most       = 12500
	Quarantine = 40 * time.Second
)

// PlanEnded picks the ended pods beyond most, the oldest first.
func PlanEnded(ended []*corev1.Pod, most int) []*corev1.Pod {
	if len(ended) <= most {
		return nil
	}
	out := slices.Clone(ended)
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return out[:len(out)-most]
}

// PlanNode says when the pods of a node that is not there are to be given up: in that time, or now (0).
func PlanNode(missingSince, now time.Time) time.Duration {
	return max(missingSince.Add(Quarantine).Sub(now), 0)
}
