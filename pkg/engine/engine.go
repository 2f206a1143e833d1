// Package engine is the small framework under the reconcilers. A reconciler declares its name, what it watches, what
// else it reads, and what it writes. The engine gives it a queue and a client that enforces the declaration, and
// restarts it after a crash without affecting the others. Its invariant: a reconciler is never called with a cache that
// does not show the earlier writes for the same request, so it needs no expectations.
package engine

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/coracle-dev/coracle/pkg/client/events"
)

// Request names the object to reconcile. Kind is empty unless the reconciler has requests for several kinds of objects.
type Request struct {
	Kind string
	types.NamespacedName
}

// String returns NAMESPACE/NAME, after the kind if there is one.
func (r Request) String() string {
	return strings.TrimLeft(r.Kind+" "+r.NamespacedName.String(), " ")
}

// Result says when to requeue a request.
type Result = reconcile.Result

// Func brings one object to its desired state. It gets the object's name, not the event, so it is level-triggered.
// Calls for different objects may run concurrently, calls for one object never do.
type Func func(ctx context.Context, req Request) (Result, error)

// Reconciler declares one reconciler.
type Reconciler struct {
	// Name is short and unique: "replicaset".
	Name string
	// Account is the service account in kube-system that it acts as. The default is Name and "-controller".
	Account string
	// Watches are the kinds whose changes enqueue requests, first the kind that it reconciles. It may also read them.
	Watches []Watch
	// Every, if not nil, watches all kinds in addition.
	Every *Every
	// Reads are further kinds that it reads.
	Reads []client.Object
	// Writes are the parts of kinds that it writes.
	Writes []Write
	// Further are RBAC rules that it needs in Coracle besides the ones that follow from Watches, Reads and Writes.
	Further []rbacv1.PolicyRule
	// Indexes are the indexes that it uses.
	Indexes []Index
	// When, if not nil, is the kind without whose objects there is nothing to do. Until the first one exists, the
	// reconciler counts as synced and only watches that kind.
	When client.Object
	// Workers is the number of objects reconciled concurrently; 0 means 2.
	Workers int
	// Metrics, if not nil, are the reconciler's own.
	Metrics prometheus.Collector
	// New creates the function for each start.
	New func(Env) Func
}

// ServiceAccount returns the name of the service account that a reconciler acts as.
func (r *Reconciler) ServiceAccount() string { return cmp.Or(r.Account, r.Name+"-controller") }

// Identity returns the user that a reconciler acts as.
func (r *Reconciler) Identity() string {
	return "system:serviceaccount:kube-system:" + r.ServiceAccount()
}

// Watch is a kind, and the mapping of its changes to requests.
type Watch struct {
	Object client.Object
	// Optional means that the API server need not have the kind. Without it, the reconciler works as if there were no
	// such objects.
	Optional bool
	// Map returns the requests for an object. It is called with the states before and after a change, and may read
	// through env. Nil means the object itself.
	Map func(ctx context.Context, env Env, obj client.Object) []Request
	// Batch, if not nil, names a change of an object: Map is called once, with the last object, for all changes of one
	// name in a burst. A single change is delayed by 5 ms, a burst until it pauses for up to 25 ms, but by at most a
	// second.
	Batch func(obj client.Object) string
	// Changed reports whether an update is relevant. Nil means that all are.
	Changed func(was, is client.Object) bool
	// Event, if not nil, replaces Map and Changed: was is nil for an addition, is for a deletion. It is for
	// reconcilers with their own index; their decisions must not rely on it alone.
	Event func(ctx context.Context, env Env, was, is client.Object) []Request
}

// Part is a part of an object that a reconciler writes.
type Part string

const (
	Create     Part = "create"
	Delete     Part = "delete"
	Spec       Part = "spec" // everything but metadata and status
	Metadata   Part = "metadata"
	Finalizers Part = "finalizers"
	Status     Part = "status"
)

// Write is a kind and the written parts of it.
type Write struct {
	Object client.Object // nil: any kind
	Parts  []Part
}

// Index finds objects of a kind by a computed value.
type Index struct {
	Object client.Object
	Name   string
	Values func(client.Object) []string
}

// Env is the environment of a reconciler.
type Env struct {
	// Client writes with the reconciler's identity. Undeclared writes fail. It reads from the cache.
	Client client.Client
	// Cache reads declared kinds from the informers. Results are immutable below the first level: DeepCopy before a
	// change.
	Cache client.Reader
	// Events records events from "<name>-controller".
	Events *events.Recorder
	// Log is the reconciler's own logger.
	Log *slog.Logger
	Now func() time.Time

	indexes *indexes
	queue   func(Request, time.Duration)
	begin   func(func(context.Context))
}

// Enqueue enqueues req after d; 0 means now. It is safe for concurrent use.
func (e Env) Enqueue(req Request, d time.Duration) { e.queue(req, d) }

// Go runs f in a goroutine. Its context ends when the reconciler stops, which waits for f.
func (e Env) Go(f func(context.Context)) { e.begin(f) }

// ByIndex lists the objects in a namespace, "" for all, that have the value in a declared index.
func (e Env) ByIndex(ctx context.Context, list client.ObjectList, namespace, index, value string) error {
	return e.indexes.list(ctx, e.Cache, list, namespace, index, value)
}

// ControllerIndex finds dependents by the UID of their controller. NoController is the value for objects without one.
const (
	ControllerIndex = "metadata.controller"
	NoController    = "none"
)

// ByController returns the index named ControllerIndex over obj's kind.
func ByController(obj client.Object) Index {
	return Index{Object: obj, Name: ControllerIndex, Values: func(o client.Object) []string {
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
			return []string{string(ref.UID)}
		}
		return []string{NoController}
	}}
}

// Controller maps an object to its controller, if that has the given kind.
func Controller(gk schema.GroupKind) func(context.Context, Env, client.Object) []Request {
	return func(_ context.Context, _ Env, o client.Object) []Request {
		ref := metav1.GetControllerOfNoCopy(o)
		if ref == nil || ref.Kind != gk.Kind {
			return nil
		}
		if gv, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || gv.Group != gk.Group {
			return nil
		}
		return []Request{RequestFor(o.GetNamespace(), ref.Name)}
	}
}

// ControllerOrAdopters maps an object to its controller, if that has the given kind. An object without a controller
// maps to the objects of list in its namespace whose non-empty selector matches it, since they may adopt it.
func ControllerOrAdopters(gk schema.GroupKind, list func() client.ObjectList,
	selector func(client.Object) *metav1.LabelSelector) func(context.Context, Env, client.Object) []Request {
	controller := Controller(gk)
	return func(ctx context.Context, env Env, o client.Object) []Request {
		if metav1.GetControllerOfNoCopy(o) != nil {
			return controller(ctx, env, o)
		}
		if o.GetDeletionTimestamp() != nil || len(o.GetLabels()) == 0 {
			return nil
		}
		all := list()
		if env.Cache.List(ctx, all, client.InNamespace(o.GetNamespace())) != nil {
			return nil
		}
		return RequestsIn(all, func(adopter client.Object) bool {
			s, err := metav1.LabelSelectorAsSelector(selector(adopter))
			return err == nil && !s.Empty() && s.Matches(labels.Set(o.GetLabels()))
		})
	}
}

// RequestFor returns the request for an object.
func RequestFor(namespace, name string) Request {
	return RequestOf("", namespace, name)
}

// RequestOf returns the request for an object of a kind.
func RequestOf(kind, namespace, name string) Request {
	return Request{kind, client.ObjectKey{Namespace: namespace, Name: name}}
}

// Namespace maps an object to its namespace.
func Namespace(_ context.Context, _ Env, o client.Object) []Request {
	return []Request{RequestFor("", o.GetNamespace())}
}

// SpecChanged reports whether an update changed the spec (its generation) or started the deletion.
func SpecChanged(was, is client.Object) bool {
	return was.GetGeneration() != is.GetGeneration() ||
		(was.GetDeletionTimestamp() == nil) != (is.GetDeletionTimestamp() == nil)
}
