// Package resourcequota maintains the status of resource quotas: the usage of each limited resource. Its invariant: it
// never lowers a quota's usage while a write that was charged to it may still be committed. Usage counts such writes
// too, and a status only replaces the version that it was computed from.
package resourcequota

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Usage computes the usage of the resources in a quota's spec.hard, within its scopes. It must include the writes
// that were charged to this version of the quota.
type Usage func(*corev1.ResourceQuota) (corev1.ResourceList, error)

// Changes that free a resource are counted after soon. Other changes only correct what admission charged, and are
// batched for later. The resync period is upstream's.
const (
	soon   = 50 * time.Millisecond
	later  = time.Second
	resync = 5 * time.Minute
)

// New declares the reconciler. kinds are the kinds that a quota may count.
func New(kinds engine.Kinds, usage Usage) *engine.Reconciler {
	return &engine.Reconciler{
		Name:    "resourcequota",
		Watches: []engine.Watch{{Object: &corev1.ResourceQuota{}, Event: changedQuota}},
		Every:   &engine.Every{Kinds: kinds, Object: counted, Event: changed},
		Writes:  []engine.Write{{Object: &corev1.ResourceQuota{}, Parts: []engine.Part{engine.Status}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, q *corev1.ResourceQuota) (engine.Result, error) {
				used, err := usage(q)
				if err != nil {
					return engine.Result{}, err
				}
				if status, changed := Plan(q, used); changed {
					next := q.DeepCopy()
					next.Status = status
					err = env.Client.Status().Update(ctx, next)
				}
				return engine.Result{RequeueAfter: resync}, err
			})
		},
	}
}

// counted returns the object to watch for a kind, nil if quotas do not count the kind.
func counted(k engine.Kind) client.Object {
	switch {
	case !k.Namespaced || k.Kind == "Event" || k.Kind == "ResourceQuota":
		return nil
	case k.GroupVersionKind == corev1.SchemeGroupVersion.WithKind("Pod"):
		return &corev1.Pod{}
	case k.GroupVersionKind == corev1.SchemeGroupVersion.WithKind("Service"):
		return &corev1.Service{}
	case k.GroupVersionKind == corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"):
		return &corev1.PersistentVolumeClaim{}
	}
	return k.Metadata()
}

func changedQuota(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if was == nil || is == nil {
		changed(ctx, env, engine.Kind{}, was, is) // quotas count quotas, too
	}
	q, ok := is.(*corev1.ResourceQuota)
	if !ok {
		return nil
	}
	req := engine.RequestFor(q.Namespace, q.Name)
	if old, ok := was.(*corev1.ResourceQuota); ok && equality.Semantic.DeepEqual(old.Spec, q.Spec) {
		env.Enqueue(req, later) // admission charged it, possibly for a write that will fail
		return nil
	}
	return []engine.Request{req}
}

// changed enqueues the quotas of a namespace whose usage may have changed.
func changed(ctx context.Context, env engine.Env, _ engine.Kind, was, is client.Object) []engine.Request {
	after := later
	if is == nil {
		is, after = was, soon
	} else if was != nil {
		counts := false
		switch before := was.(type) {
		case *corev1.Pod:
			counts = podCounts(before, is.(*corev1.Pod))
		case *corev1.Service:
			counts = !equality.Semantic.DeepEqual(before.Spec, is.(*corev1.Service).Spec)
		case *corev1.PersistentVolumeClaim:
			counts = claimCounts(before, is.(*corev1.PersistentVolumeClaim))
		}
		if !counts {
			return nil // quotas only count the objects of other kinds
		}
		after = soon
	}
	var list corev1.ResourceQuotaList
	if err := env.Cache.List(ctx, &list, client.InNamespace(is.GetNamespace())); err != nil {
		env.Log.Warn("could not list resource quotas", "namespace", is.GetNamespace(), "error", err)
		return nil
	}
	for _, req := range engine.Requests(list.Items, nil) {
		env.Enqueue(req, after)
	}
	return nil
}

// podCounts reports whether a change of a pod may change a quota's usage.
func podCounts(before, now *corev1.Pod) bool {
	return podstate.Ended(before) != podstate.Ended(now) ||
		(before.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) || before.Generation != now.Generation ||
		!equality.Semantic.DeepEqual(before.Status.Conditions, now.Status.Conditions) ||
		resized(before.Status.ContainerStatuses, now.Status.ContainerStatuses) || resized(before.Status.InitContainerStatuses,
		now.Status.InitContainerStatuses)
}

func resized(before, now []corev1.ContainerStatus) bool {
	return !slices.EqualFunc(before, now, func(a, b corev1.ContainerStatus) bool {
		return equality.Semantic.DeepEqual(a.Resources, b.Resources) &&
			equality.Semantic.DeepEqual(a.AllocatedResources, b.AllocatedResources)
	})
}

// claimCounts reports whether a change of a claim may change a quota's usage: its requested or allocated size, or
// the classes that scopes select.
func claimCounts(before, now *corev1.PersistentVolumeClaim) bool {
	a, b := before.Status, now.Status
	return !equality.Semantic.DeepEqual(before.Spec, now.Spec) ||
		!equality.Semantic.DeepEqual(a.AllocatedResources, b.AllocatedResources) ||
		!equality.Semantic.DeepEqual(a.CurrentVolumeAttributesClassName, b.CurrentVolumeAttributesClassName) ||
		!equality.Semantic.DeepEqual(a.ModifyVolumeStatus, b.ModifyVolumeStatus)
}
