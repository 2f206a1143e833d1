// Package engine is the small framework under the reconcilers: a reconciler
// declares its name, what it watches, what else it reads and what it writes;
// the engine provides a client that enforces the declaration and a queue, and
// restarts a reconciler that crashes without affecting the others.
//
// Its invariant: a reconciler is never called with a cache that does not yet show what the same request wrote before,
// so nothing needs expectations.
package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/coracle-dev/coracle/pkg/client/events"
)

// Request names the object to reconcile, Result when to requeue it.
type (
	Request = reconcile.Request
	Result  = reconcile.Result
)

// Func brings one object to its desired state. It is level-triggered: it gets the
// object's name, not the event. Calls for different objects may run concurrently,
// calls for one object never do.
type Func func(ctx context.Context, req Request) (Result, error)

// Reconciler declares one reconciler.
type Reconciler struct {
	// Name is short and unique: "replicaset".
	Name string
	// Account is the service account in kube-system that it acts as; empty means Name and "-controller".
	Account string
	// Watches are the kinds whose changes enqueue requests; it may read them too.
	Watches []Watch
	// Every, if not nil, additionally watches all kinds.
	Every *Every
	// Reads are further kinds it reads.
	Reads []client.Object
	// Writes are the parts of kinds that it writes.
	Writes []Write
	// Indexes it looks objects up by.
	Indexes []Index
	// When, if not nil, is a kind without whose objects there is nothing to do: the reconciler counts as synced, and
	// starts nothing but a watch of that kind, until there is the first.
	When client.Object
	// Workers is the number of objects reconciled concurrently; 0 means 2.
	Workers int
	// Metrics, if not nil, are the reconciler's own.
	Metrics prometheus.Collector
	// New creates the function, once for each start.
	New func(Env) Func
}

// Identity is the user a reconciler acts as.
func (r *Reconciler) Identity() string {
	account := r.Account
	if account == "" {
		account = r.Name + "-controller"
	}
	return "system:serviceaccount:kube-system:" + account
}

// Watch is a kind, and how its changes map to requests.
type Watch struct {
	Object client.Object
	// Optional: the API server need not have the kind. The reconciler works without it then, as if there were no object of
	// it.
	Optional bool
	// Map returns the requests for an object; it is called with the state before and
	// the one after a change. Nil: the object itself. It may read through env.
	Map func(ctx context.Context, env Env, obj client.Object) []Request
	// Batch, if not nil, names a change of an object: Map is called once, with the last object, for all changes of one
	// name that come in a burst. A single change is delayed by 5 ms, a burst until it pauses for up to 100 ms, and none by
	// more than a second.
	Batch func(obj client.Object) string
	// Changed reports whether an update is relevant; nil: all are.
	Changed func(was, is client.Object) bool
	// Event, if not nil, replaces Map and Changed: was is nil for an addition, is for a deletion.
	// It is for reconcilers that maintain an index of their own; their decisions must not rely on it alone.
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

// Write is a kind and the parts of it that are written.
type Write struct {
	Object client.Object // nil: any kind
	Parts  []Part
}

// Index finds objects of a kind by a value computed from them.
type Index struct {
	Object client.Object
	Name   string
	Values func(client.Object) []string
}

// Env is the environment of a reconciler.
type Env struct {
	// Client writes with the reconciler's identity; undeclared writes fail. Its reads come from the cache.
	Client client.Client
	// Cache reads from the informers, of declared kinds only. What it
	// returns is immutable below the first level: DeepCopy before modifying it.
	Cache client.Reader
	// Events records events for people, as "<name>-controller".
	Events *events.Recorder
	// Log is the reconciler's own.
	Log *slog.Logger
	// Now is the clock.
	Now func() time.Time

	indexes *indexes
	queue   func(Request, time.Duration)
	begin   func(func(context.Context))
}

// Enqueue enqueues req after d (0: now). It is safe for concurrent use.
func (e Env) Enqueue(req Request, d time.Duration) { e.queue(req, d) }

// Go runs f in a goroutine. Its context ends when the reconciler stops, which waits for f.
func (e Env) Go(f func(context.Context)) { e.begin(f) }

// ByIndex lists the objects of a namespace ("" for all) whose declared index has the value.
func (e Env) ByIndex(ctx context.Context, list client.ObjectList, namespace, index, value string) error {
	return e.indexes.list(ctx, e.Cache, list, namespace, index, value)
}

// ControllerIndex finds dependents by the UID of their controller; NoController is
// the value of those that have none.
const (
	ControllerIndex = "metadata.controller"
	NoController    = "none"
)

// ByController is the index over obj's kind named ControllerIndex.
func ByController(obj client.Object) Index {
	return Index{Object: obj, Name: ControllerIndex, Values: func(o client.Object) []string {
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
			return []string{string(ref.UID)}
		}
		return []string{NoController}
	}}
}

// Controller maps an object to its controller, if that is of the kind.
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

// ControllerOrAdopters maps an object to its controller, if that is of the kind. An object without a controller is
// mapped to those objects of list, in its namespace, whose selector matches its labels and is not empty: they may adopt
// it.
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
		var out []Request
		_ = meta.EachListItem(all, func(item runtime.Object) error {
			if adopter, ok := item.(client.Object); ok {
				s, err := metav1.LabelSelectorAsSelector(selector(adopter))
				if err == nil && !s.Empty() && s.Matches(labels.Set(o.GetLabels())) {
					out = append(out, RequestFor(adopter.GetNamespace(), adopter.GetName()))
				}
			}
			return nil
		})
		return out
	}
}

// RequestFor names an object.
func RequestFor(namespace, name string) Request {
	return Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}
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
