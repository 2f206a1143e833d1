// Package namespace deletes the contents of terminating namespaces, and then finalizes them. Its invariant: a namespace
// is finalized only after every kind was listed and found empty.
package namespace

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// again is the retry interval for a namespace that is not empty yet. Events enqueue it earlier, except for objects
// in aggregated API servers.
const again = 15 * time.Second

// Elsewhere deletes a namespace's objects in aggregated API servers, and returns what remains there.
type Elsewhere func(ctx context.Context, namespace string) []aggregated.Remaining

// New declares the reconciler. kinds are the kinds that this server stores. elsewhere may be nil.
func New(kinds engine.Kinds, elsewhere Elsewhere) *engine.Reconciler {
	held := &engine.Every{Kinds: kinds, Event: gone, Object: func(k engine.Kind) client.Object {
		if !k.Namespaced || !k.Deletable {
			return nil
		}
		return k.Metadata()
	}}
	return &engine.Reconciler{
		Name: "namespace", Workers: 4,
		Watches: []engine.Watch{{Object: &corev1.Namespace{}}},
		Every:   held,
		Writes: []engine.Write{
			{Parts: []engine.Part{engine.Delete}},
			{Object: &corev1.Namespace{}, Parts: []engine.Part{engine.Status, engine.Spec}},
		},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env, held, elsewhere}).reconcile)
		},
	}
}

func pods(k engine.Kind) bool { return k.Group == "" && k.Resource == "pods" }

// gone enqueues a terminating namespace when an object in it is created or deleted.
func gone(ctx context.Context, env engine.Env, _ engine.Kind, was, is client.Object) []engine.Request {
	if was != nil && is != nil {
		return nil
	}
	o := was
	if o == nil {
		o = is
	}
	var ns corev1.Namespace
	if env.Cache.Get(ctx, client.ObjectKey{Name: o.GetNamespace()}, &ns) != nil || ns.DeletionTimestamp == nil {
		return nil
	}
	return engine.Namespace(ctx, env, o)
}

type reconciler struct {
	engine.Env
	held      *engine.Every
	elsewhere Elsewhere
}

func (r *reconciler) reconcile(ctx context.Context, ns *corev1.Namespace) (engine.Result, error) {
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return engine.Result{}, nil
	}
	next := ns.DeepCopy()
	if ns.Status.Phase != corev1.NamespaceTerminating {
		next.Status.Phase = corev1.NamespaceTerminating
		return engine.Result{}, r.Client.Status().Update(ctx, next)
	}
	var left []aggregated.Remaining
	for _, k := range r.kinds() {
		if l := r.empty(ctx, k, ns.Name); l.Count > 0 || l.Err != nil {
			left = append(left, l)
			if pods(k) {
				break // pods may still use Secrets and policies: delete these later (KEP-5080)
			}
		}
	}
	if len(left) == 0 && r.elsewhere != nil { // last, because local objects may use it
		left = r.elsewhere(ctx, ns.Name)
	}
	conditions, empty := Plan(ns, left, r.Now())
	if !empty {
		next.Status.Conditions = conditions
		return engine.Result{RequeueAfter: again}, engine.SetStatus(ctx, r.Client, ns, &ns.Status, next.Status)
	}
	next.Spec.Finalizers = slices.DeleteFunc(next.Spec.Finalizers, func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	return engine.Result{}, r.Client.SubResource("finalize").Update(ctx, next)
}

// kinds returns the deletable namespaced kinds, pods first.
func (r *reconciler) kinds() []engine.Kind {
	kinds := r.held.Now()
	if i := slices.IndexFunc(kinds, pods); i > 0 {
		first := kinds[i]
		copy(kinds[1:], kinds[:i])
		kinds[0] = first
	}
	return kinds
}

// empty deletes the objects of a kind and returns what remains.
func (r *reconciler) empty(ctx context.Context, k engine.Kind, namespace string) (l aggregated.Remaining) {
	l.Resource = schema.GroupResource{Group: k.Group, Resource: k.Resource}.String()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(k.GroupVersionKind.GroupVersion().WithKind(k.Kind + "List"))
	if l.Err = r.Cache.List(ctx, list, client.InNamespace(namespace)); l.Err != nil {
		return l
	}
	if len(list.Items) == 0 {
		return l
	}
	fresh := slices.ContainsFunc(list.Items, func(o metav1.PartialObjectMetadata) bool {
		return o.DeletionTimestamp == nil
	})
	if fresh {
		err := r.Client.DeleteAllOf(ctx, k.Metadata(), client.InNamespace(namespace),
			client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			l.Err = err
		}
		list.Items = nil
		if err := r.Cache.List(ctx, list, client.InNamespace(namespace)); err != nil {
			l.Err = err
		}
	}
	l.Count = len(list.Items)
	l.Finalizers = map[string]int{}
	for i := range list.Items {
		for _, f := range list.Items[i].Finalizers {
			l.Finalizers[f]++
		}
	}
	return l
}
