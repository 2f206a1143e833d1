// Package resourcequota maintains the status of resource quotas: the usage of each limited resource.
//
// It may import engine. Its invariant: it never lowers a quota's usage while a write that was charged to it may still
// be committed. Config.Usage counts such writes too, and a status only replaces the one that it was computed from.
package resourcequota

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

// Usage computes the usage of the resources in a quota's spec.hard, within its scopes. It must include what the given
// version of the quota was charged for.
type Usage func(*corev1.ResourceQuota) (corev1.ResourceList, error)

// Changes that free a resource are counted soon; others only correct what admission charged, and are batched. The resync
// period is upstream's.
const (
	soon   = 50 * time.Millisecond
	later  = time.Second
	resync = 5 * time.Minute
)

// New declares the reconciler; kinds are all that a quota may count.
func New(kinds engine.Kinds, usage Usage) *engine.Reconciler {
	return &engine.Reconciler{
		Name:    "resourcequota",
		Watches: []engine.Watch{{Object: &corev1.ResourceQuota{}, Event: changedQuota}},
		Every:   &engine.Every{Kinds: kinds, Object: counted, Event: changed},
		Writes:  []engine.Write{{Object: &corev1.ResourceQuota{}, Parts: []engine.Part{engine.Status}}},
		New: func(env engine.Env) engine.Func {
			return func(ctx context.Context, req engine.Request) (engine.Result, error) {
				var q corev1.ResourceQuota
				if err := env.Cache.Get(ctx, req.NamespacedName, &q); err != nil {
					return engine.Result{}, client.IgnoreNotFound(err)
				}
				used, err := usage(&q)
				if err != nil {
					return engine.Result{}, err
				}
				if status, changed := Plan(&q, used); changed {
					next := q.DeepCopy()
					next.Status = status
					err = env.Client.Status().Update(ctx, next)
				}
				return engine.Result{RequeueAfter: resync}, client.IgnoreNotFound(err)
			}
		},
	}
}

// counted is the metadata watched of a kind that quotas count.
func counted(k engine.Kind) client.Object {
	switch {
	case !k.Namespaced || k.Kind == "Event" || k.Kind == "ResourceQuota":
		return nil
	case k.GroupVersionKind == corev1.SchemeGroupVersion.WithKind("Pod"):
		return &corev1.Pod{}
	case k.GroupVersionKind == corev1.SchemeGroupVersion.WithKind("Service"):
		return &corev1.Service{}
	}
	return k.Metadata()
}

func changedQuota(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if was == nil || is == nil {
		changed(ctx, env, engine.Kind{}, was, is) // quotas are limited too
	}
	q, ok := is.(*corev1.ResourceQuota)
	if !ok {
		return nil
	}
	req := engine.RequestFor(q.Namespace, q.Name)
	if old, ok := was.(*corev1.ResourceQuota); ok && equality.Semantic.DeepEqual(old.Spec, q.Spec) {
		env.Enqueue(req, later) // it was charged, possibly for a write that fails
		return nil
	}
	return []engine.Request{req}
}

// changed returns requests for the quotas of a namespace whose usage may have changed.
func changed(ctx context.Context, env engine.Env, _ engine.Kind, was, is client.Object) []engine.Request {
	after := later
	if is == nil {
		is, after = was, soon
	} else if was != nil {
		switch before := was.(type) {
		case *corev1.Pod:
			now := is.(*corev1.Pod)
			if ended(before) == ended(now) && (before.DeletionTimestamp == nil) == (now.DeletionTimestamp == nil) &&
				before.Generation == now.Generation && len(before.Status.ContainerStatuses) == len(now.Status.ContainerStatuses) &&
				equality.Semantic.DeepEqual(before.Status.Conditions, now.Status.Conditions) {
				return nil
			}
			after = soon
		case *corev1.Service:
			if equality.Semantic.DeepEqual(before.Spec, is.(*corev1.Service).Spec) {
				return nil
			}
			after = soon
		default:
			return nil // other kinds are only counted
		}
	}
	var list corev1.ResourceQuotaList
	if err := env.Cache.List(ctx, &list, client.InNamespace(is.GetNamespace())); err != nil {
		env.Log.Warn("could not list resource quotas", "namespace", is.GetNamespace(), "error", err)
		return nil
	}
	for i := range list.Items {
		env.Enqueue(engine.RequestFor(is.GetNamespace(), list.Items[i].Name), after)
	}
	return nil
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
