// Package nodestate holds predicates on nodes that several packages share. Its invariant: its functions are pure.
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

// LabelExternal is "true" on nodes without our agent: another program runs their pods, which have no addresses in the
// cluster. Stored nodes have this label; external workers of tasks were the first such nodes.
const LabelExternal = "tasks.coracle.dev/external"

// External reports whether a node does not run our agent.
func External(n *corev1.Node) bool { return n.Labels[LabelExternal] == "true" }

// OutOfService reports whether the node has the taint for nodes that are shut down, on which nothing runs.
func OutOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}
