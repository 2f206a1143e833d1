// Package part defines the interface of extensions to the node agent: calls at the steps of a pod's life, and routes
// of the node's API. The agent knows extensions only by this interface.
//
// Invariant: the methods of a Part do nothing for pods that do not belong to the Part's system.
package part

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Part is an extension of the agent. Its methods are safe for concurrent use.
type Part interface {
	// Start is called before any pod is handled, and Stop when the agent ends.
	Start() error
	Stop()
	// Routes returns the routes that the node's API serves to users who may create nodes/proxy.
	Routes() []Route
	// ConditionType returns the type of the condition that Condition returns; "" for none.
	ConditionType() corev1.PodConditionType

	// Setup is called after the pod's network is set up and before its containers start.
	Setup(ctx context.Context, p *corev1.Pod, ip string) error
	// Env returns variables for all containers of the pod.
	Env(p *corev1.Pod) []corev1.EnvVar
	// Observe is called with the newest instance of the pod's first container, and whether it runs.
	Observe(uid types.UID, container string, runs bool)
	// Close is called when the pod terminates, and Release when nothing of it runs any more. Both may be repeated.
	Close(uid types.UID)
	Release(uid types.UID)
	// Condition returns the pod's condition, or nil.
	Condition(uid types.UID) *corev1.PodCondition
	// Synced is called once, when all pods of the node are known.
	Synced(known func(types.UID) bool)

	// Owner returns the UID of the object that reports the pod's state to users, or "". The status of an owned pod is
	// written as rarely as possible, and its normal course causes no events.
	Owner(p *corev1.Pod) string
	// Keep takes over the logs of an owned pod before anything of the pod is removed. It may be repeated after a crash.
	Keep(logs, owner string, uid types.UID, name string) error
}

// FileKeeper is implemented by Parts that keep files of owned pods. KeepFiles may copy files from a pod's volumes to
// its directory of logs, before the volumes are removed. Nothing of the pod runs any more. It may be repeated.
type FileKeeper interface {
	KeepFiles(logs, owner string, uid types.UID)
}

// None is a Part that does nothing, for embedding.
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

// Log identifies the log of a container, also after its pod is gone.
type Log struct {
	Namespace, Pod string
	UID            types.UID
	Container      string
	// Kept returns the path of the log after the pod is gone, or an error if there is none.
	Kept func() (path string, err error)
}

// Route is a route of the node's API. Pattern has the syntax of http.ServeMux.
type Route struct {
	Pattern string
	Handler http.HandlerFunc
}

// Host is what the agent provides to a Part.
type Host struct {
	NodeName string
	// DataDir is the agent's directory, where a Part may have a subdirectory. In LogDir, the directory of pods' logs,
	// the name of a Part's subdirectory must begin with a dot.
	DataDir, LogDir string
	// Enter runs f in the network namespace of a pod.
	Enter func(ctx context.Context, uid string, f func() error) error
	// API sends requests to the API server; nil in tests without one.
	API API
	// Token returns a token of the pod's service account.
	Token func(ctx context.Context, p *corev1.Pod) (string, error)
	// ServeLog responds with a log. The query has PodLogOptions.
	ServeLog func(w http.ResponseWriter, r *http.Request, log Log)
	// VolumeDir returns the directory of an emptyDir on disk, whether it exists or not.
	VolumeDir func(uid types.UID, volume string) string
	// Usage returns what the pod's containers have used together since the pod began: the most bytes of memory at a
	// time, with the page cache, and processor time. It fails unless the container has ended.
	Usage func(ctx context.Context, uid types.UID, container string) (memory uint64, cpu time.Duration, err error)
	// Changed must be called when the result of Condition changes.
	Changed func(types.UID)
	// Event records an event on a pod.
	Event   func(p *corev1.Pod, kind, reason, message string)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// API sends requests to the API server with the token or, if "", as the node. Only a URL's path and query are used.
type API interface {
	Do(req *http.Request, token string) (*http.Response, error)
}
