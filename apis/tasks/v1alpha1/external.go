package v1alpha1

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// External is the label of Nodes that are external workers: machines that run no agent, but registered themselves with
// the REST API, are given tasks over HTTP, and report back. They also have a taint with this key and no value, with the
// effect NoSchedule: only pods that tolerate it are scheduled to them.
const External = "tasks.coracle.dev/external"

// ToleratesExternal is the toleration of tasks and pods that external workers may run.
func ToleratesExternal() corev1.Toleration {
	return corev1.Toleration{Key: External, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
}

// HeartbeatTimeout is the annotation of external workers that says for how many seconds one may be silent, from
// MinHeartbeatTimeout to MaxHeartbeatTimeout.
const HeartbeatTimeout = "tasks.coracle.dev/heartbeat-timeout"

// The bounds of HeartbeatTimeout in seconds, and what holds for workers without it.
const (
	MinHeartbeatTimeout     = 2
	MaxHeartbeatTimeout     = 3600
	DefaultHeartbeatTimeout = 30
)

// DefaultPatience is how long a node of ours may be silent before the attempts of tasks on it have failed, unless the
// server was told otherwise. Nodes send a heartbeat every 10 s.
const DefaultPatience = 30 * time.Second

// Patience returns how long a node may be silent before the attempts of tasks on it have failed. External workers
// choose it when they register; for other nodes it is general.
func Patience(n *corev1.Node, general time.Duration) time.Duration {
	if !IsExternal(n) {
		return general
	}
	seconds, err := strconv.Atoi(n.Annotations[HeartbeatTimeout])
	if err != nil || seconds < MinHeartbeatTimeout || seconds > MaxHeartbeatTimeout {
		seconds = DefaultHeartbeatTimeout
	}
	return time.Duration(seconds) * time.Second
}

// IsExternal reports whether a Node is an external worker.
func IsExternal(n *corev1.Node) bool { return n.Labels[External] == "true" }
