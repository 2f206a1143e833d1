package v1alpha1

import corev1 "k8s.io/api/core/v1"

// External is the label of Nodes that are external workers: machines that run no agent, but registered themselves with
// the REST API, are given tasks over HTTP, and report back. They also have a taint with this key and no value, with the
// effect NoSchedule: only pods that tolerate it are scheduled to them.
const External = "tasks.coracle.dev/external"

// ToleratesExternal is the toleration of tasks and pods that external workers may run.
func ToleratesExternal() corev1.Toleration {
	return corev1.Toleration{Key: External, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
}

// IsExternal reports whether a Node is an external worker.
func IsExternal(n *corev1.Node) bool { return n.Labels[External] == "true" }
