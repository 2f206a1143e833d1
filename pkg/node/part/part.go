// Package part describes what a system adds to the agent of a node: work at the steps of a pod's life, and paths of the
// node's API. The agent knows parts only by this interface.
//
// Its invariant: the methods of a Part do nothing for pods that are not its system's.
package part

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Part is what a system adds to an agent. Its methods are safe for concurrent use.
type Part interface {
	// Start is called before any pod is handled, Stop when the agent ends.
	Start() error
	Stop()
	// Routes are served by the node's API to users who may create nodes/proxy.
	Routes() []Route
	// ConditionType is the type of the condition that Condition returns; empty for none.
	ConditionType() corev1.PodConditionType

	// Setup is called once the pod's network is up, before containers start.
	Setup(ctx context.Context, p *corev1.Pod, ip string) error
	// Env returns variables for the pod's containers.
	Env(p *corev1.Pod) []corev1.EnvVar
	// Observe is called with the newest container of the pod's first name, and whether it runs.
	Observe(uid types.UID, container string, runs bool)
	// Close is called when the pod terminates, Release when nothing of it runs any longer.
	Close(uid types.UID)
	Release(uid types.UID)
	// Condition is a condition of the pod, or nil.
	Condition(uid types.UID) *corev1.PodCondition
	// Synced is called once all pods of the node are known.
	Synced(known func(types.UID) bool)
}

// Route is a path of the node's API, as http.ServeMux takes it.
type Route struct {
	Pattern string
	Handler http.HandlerFunc
}

// Host is what an agent gives to the parts that it makes.
type Host struct {
	NodeName string
	// DataDir is the agent's, in which a part has a directory of its own.
	DataDir string
	// Enter runs f in the network namespace of a pod.
	Enter func(ctx context.Context, uid string, f func() error) error
	// API sends requests to the API server; nil if there is none (in tests).
	API API
	// Token returns a token of the pod's service account.
	Token func(ctx context.Context, p *corev1.Pod) (string, error)
	// Changed is to be called when Condition of a pod returns something else.
	Changed func(types.UID)
	// Event records an event on a pod.
	Event   func(p *corev1.Pod, kind, reason, message string)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// API sends requests to the API server, with a token, or without one as the node itself. Only path and query of a URL count.
type API interface {
	Do(req *http.Request, token string) (*http.Response, error)
}
