package v1alpha1

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// External is the label of Nodes that are external workers: machines that run no agent, register with the REST API,
// receive tasks over HTTP, and report the results. They have a NoSchedule taint with this key and no value, so only
// pods that tolerate it are scheduled to them.
const External = "tasks.coracle.dev/external"

// ToleratesExternal returns the toleration for tasks and pods that external workers may run.
func ToleratesExternal() corev1.Toleration {
	return corev1.Toleration{Key: External, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
}

// HeartbeatTimeout is the annotation of an external worker with the number of seconds that it may send no
// heartbeat, from MinHeartbeatTimeout to MaxHeartbeatTimeout.
const HeartbeatTimeout = "tasks.coracle.dev/heartbeat-timeout"

// Bounds of HeartbeatTimeout in seconds, and the value for workers without a valid annotation.
const (
	MinHeartbeatTimeout     = 2
	MaxHeartbeatTimeout     = 3600
	DefaultHeartbeatTimeout = 30
)

// DefaultPatience is the default of Patience for nodes that are not external workers. Their agents send a heartbeat
// every 10 s.
const DefaultPatience = 30 * time.Second

// Patience returns how long a node may send no heartbeat before the attempts of tasks on it fail. External workers
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
