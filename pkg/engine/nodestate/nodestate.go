// Package nodestate holds predicates on nodes that several reconcilers share.
//
// Its invariant: its functions are pure and change no argument.
package nodestate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Ready reports whether the node's Ready condition is true.
func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// OutOfService reports whether somebody has said, by a taint, that the node is shut down: that nothing runs there.
func OutOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}
