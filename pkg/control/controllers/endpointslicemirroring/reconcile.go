// Package endpointslicemirroring copies Endpoints that users write for Services without a selector to EndpointSlices,
// because the service proxy and DNS read only EndpointSlices. Its invariant: it touches only slices whose managed-by
// label names it.
package endpointslicemirroring

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "endpointslicemirroring", Workers: 2,
		Watches: []engine.Watch{
			{Object: &corev1.Endpoints{}},
			{Object: &corev1.Service{}},
			{Object: &discoveryv1.EndpointSlice{}, Map: func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
				if l := o.GetLabels(); l[discoveryv1.LabelManagedBy] == manager && l[discoveryv1.LabelServiceName] != "" {
					return []engine.Request{engine.RequestFor(o.GetNamespace(), l[discoveryv1.LabelServiceName])}
				}
				return nil
			}},
		},
		Writes: []engine.Write{
			{
				Object: &discoveryv1.EndpointSlice{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata},
			},
		},
		New: func(env engine.Env) engine.Func {
			return func(ctx context.Context, req engine.Request) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, req)
			}
		},
	}
}

func reconcile(ctx context.Context, env engine.Env, req engine.Request) error {
	e, err := engine.Find[corev1.Endpoints](ctx, env.Cache, req.Namespace, req.Name)
	if err != nil {
		return err
	}
	svc, err := engine.Find[corev1.Service](ctx, env.Cache, req.Namespace, req.Name)
	if err != nil {
		return err
	}
	var list discoveryv1.EndpointSliceList
	if err := env.Cache.List(ctx, &list, client.InNamespace(req.Namespace), client.MatchingLabels{
		discoveryv1.LabelServiceName: req.Name, discoveryv1.LabelManagedBy: manager,
	}); err != nil {
		return err
	}
	var have []*discoveryv1.EndpointSlice
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			have = append(have, &list.Items[i])
		}
	}
	a := Plan(e, svc, have)
	for _, s := range a.Create {
		if err := env.Client.Create(ctx, s); err != nil && !engine.Terminating(err) {
			return err
		}
	}
	for _, s := range a.Update {
		if err := env.Client.Update(ctx, s); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	for _, s := range a.Delete {
		if err := engine.Remove(ctx, env.Client, s); err != nil {
			return err
		}
	}
	return nil
}
