// Package endpoints keeps the v1 Endpoints of each service with a selector, for those who still read them.
//
// It may import engine. Its invariant: it leaves the Endpoints of services without a selector alone.
package endpoints

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine/podstate"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "endpoints", Account: "endpoint-controller", Workers: 4,
		Watches: []engine.Watch{
			{Object: &corev1.Service{}},
			{Object: &corev1.Pod{}, Map: services, Changed: func(was, is client.Object) bool {
				a, ok1 := was.(*corev1.Pod)
				b, ok2 := is.(*corev1.Pod)
				return !ok1 || !ok2 || matters(a, b)
			}},
			{Object: &corev1.Endpoints{}},
		},
		Writes: []engine.Write{
			{Object: &corev1.Endpoints{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}},
		},
		New: func(env engine.Env) engine.Func {
			return func(ctx context.Context, req engine.Request) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, req)
			}
		},
	}
}

func matters(was, is *corev1.Pod) bool {
	return was.Spec.NodeName != is.Spec.NodeName || (was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		podstate.Ready(was) != podstate.Ready(is) || podstate.Ended(was) != podstate.Ended(is) ||
		!slices.Equal(was.Status.PodIPs, is.Status.PodIPs) || !maps.Equal(was.Labels, is.Labels)
}

func selects(s *corev1.Service) bool {
	return len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// services maps a pod to the services that select it.
func services(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	if len(o.GetLabels()) == 0 {
		return nil
	}
	var all corev1.ServiceList
	if env.Cache.List(ctx, &all, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	var out []engine.Request
	for i := range all.Items {
		if s := &all.Items[i]; selects(s) && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(o.GetLabels())) {
			out = append(out, engine.RequestFor(s.Namespace, s.Name))
		}
	}
	return out
}

func reconcile(ctx context.Context, env engine.Env, req engine.Request) error {
	var have *corev1.Endpoints
	var e corev1.Endpoints
	switch err := env.Cache.Get(ctx, req.NamespacedName, &e); {
	case err == nil:
		have = &e
	case !apierrors.IsNotFound(err):
		return err
	}
	var svc corev1.Service
	switch err := env.Cache.Get(ctx, req.NamespacedName, &svc); {
	case apierrors.IsNotFound(err):
		if have == nil || have.Labels[managedBy] != manager {
			return nil
		}
		return client.IgnoreNotFound(env.Client.Delete(ctx, have, engine.Preconditions(have)))
	case err != nil:
		return err
	}
	if svc.DeletionTimestamp != nil || !selects(&svc) {
		return nil
	}
	var list corev1.PodList
	if err := env.Cache.List(ctx, &list, client.InNamespace(svc.Namespace), client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(svc.Spec.Selector)}); err != nil {
		return err
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	want := Plan(&svc, pods, have)
	switch {
	case want == nil:
		return nil
	case have == nil:
		err := env.Client.Create(ctx, want)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	}
	return client.IgnoreNotFound(env.Client.Update(ctx, want))
}
