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

	// Owner returns the UID of the object that tells users about a pod, empty if that is the pod itself. The status of a
	// pod that has an owner is written as rarely as possible, and its usual course makes no events.
	Owner(p *corev1.Pod) string
	// Keep takes the directory of the logs of a pod that has an owner, before anything of the pod is removed. It may be
	// called again after a crash.
	Keep(logs, owner string, uid types.UID, name string) error
}

// None is a Part that does nothing, for parts that do only some of it.
type None struct{}

var _ Part = None{}

func (None) Start() error                                     { return nil }
func (None) Stop()                                            {}
func (None) Routes() []Route                                  { return nil }
func (None) ConditionType() corev1.PodConditionType           { return "" }
func (None) Setup(context.Context, *corev1.Pod, string) error { return nil }
func (None) Env(*corev1.Pod) []corev1.EnvVar                  { return nil }
func (None) Observe(types.UID, string, bool)                  {}
func (None) Close(types.UID)                                  {}
func (None) Release(types.UID)                                {}
func (None) Condition(types.UID) *corev1.PodCondition         { return nil }
func (None) Synced(func(types.UID) bool)                      {}
func (None) Owner(*corev1.Pod) string                         { return "" }
func (None) Keep(string, string, types.UID, string) error     { return nil }

// Log is the log of a container, whether its pod is still there or not.
type Log struct {
	Namespace, Pod string
	UID            types.UID
	Container      string
	// Kept returns the path of the log once the pod is gone. An error means that there is none.
	Kept func() (path string, err error)
}

// Route is a path of the node's API, as http.ServeMux takes it.
type Route struct {
	Pattern string
	Handler http.HandlerFunc
}

// Host is what an agent gives to the parts that it makes.
type Host struct {
	NodeName string
	// DataDir is the agent's, in which a part has a directory of its own. LogDir is the directory of pods' logs, in which
	// a part may have one whose name begins with a dot.
	DataDir, LogDir string
	// Enter runs f in the network namespace of a pod.
	Enter func(ctx context.Context, uid string, f func() error) error
	// API sends requests to the API server; nil if there is none (in tests).
	API API
	// Token returns a token of the pod's service account.
	Token func(ctx context.Context, p *corev1.Pod) (string, error)
	// ServeLog responds with a log, as the query of a request asks, which is a pod log's.
	ServeLog func(w http.ResponseWriter, r *http.Request, log Log)
	// Changed is to be called when Condition of a pod returns something else.
	Changed func(types.UID)
	// Event records an event on a pod.
	Event   func(p *corev1.Pod, kind, reason, message string)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// API sends requests to the API server, with a token, or without one as the node itself. Only path and query of a URL
// count.
type API interface {
	Do(req *http.Request, token string) (*http.Response, error)
}
