// Package endpoints maintains the v1 Endpoints of each Service with a selector, for clients that still read them. Its
// invariant: it does not touch the Endpoints of Services without a selector.
package endpoints

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/services"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "endpoints", Account: "endpoint-controller", Workers: 4,
		Watches: []engine.Watch{
			{Object: &corev1.Service{}},
			services.WatchPods(),
			{Object: &corev1.Endpoints{}},
		},
		Writes: []engine.Write{
			{Object: &corev1.Endpoints{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}},
		},
		New: func(env engine.Env) engine.Func {
			memory := services.NewMemory()
			return func(ctx context.Context, req engine.Request) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, memory, req)
			}
		},
	}
}

func reconcile(ctx context.Context, env engine.Env, memory *services.Memory, req engine.Request) error {
	have, err := engine.Find[corev1.Endpoints](ctx, env.Cache, req.Namespace, req.Name)
	if err != nil {
		return err
	}
	svc, err := engine.Find[corev1.Service](ctx, env.Cache, req.Namespace, req.Name)
	switch {
	case err != nil:
		return err
	case svc == nil:
		memory.Forget(req.NamespacedName)
		if have == nil || have.Labels[managedBy] != manager {
			return nil
		}
		return engine.Remove(ctx, env.Client, have)
	}
	if svc.DeletionTimestamp != nil || !services.HasSelector(svc) {
		return nil
	}
	var list corev1.PodList
	if err := env.Cache.List(ctx, &list, client.InNamespace(svc.Namespace), client.MatchingLabelsSelector{
		Selector: labels.SelectorFromSet(svc.Spec.Selector),
	}); err != nil {
		return err
	}
	pods := engine.Pointers(list.Items)
	state := memory.State(svc, pods)
	if have != nil {
		state.Written[have.Name] = have.ResourceVersion
	}
	if memory.Is(req.NamespacedName, state) {
		return nil
	}
	if want := Plan(svc, pods, have); want != nil {
		err := write(ctx, env, want, have == nil)
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		state.Written[want.Name] = want.ResourceVersion
	}
	memory.Keep(req.NamespacedName, state)
	return nil
}

func write(ctx context.Context, env engine.Env, want *corev1.Endpoints, create bool) error {
	if !create {
		return env.Client.Update(ctx, want)
	}
	err := env.Client.Create(ctx, want)
	if engine.Terminating(err) {
		return nil
	}
	return err
}
