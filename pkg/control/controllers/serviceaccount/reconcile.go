// Package serviceaccount creates the default service account of each namespace. Its invariant: it only creates.
package serviceaccount

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "serviceaccount", Account: "service-account-controller",
		Watches: []engine.Watch{
			{Object: &corev1.Namespace{}, Changed: engine.SpecChanged},
			{Object: &corev1.ServiceAccount{}, Map: namespaceOf, Changed: func(_, _ client.Object) bool { return false }},
		},
		Writes: []engine.Write{{Object: &corev1.ServiceAccount{}, Parts: []engine.Part{engine.Create}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, ns *corev1.Namespace) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, ns)
			})
		},
	}
}

// namespaceOf maps the default account to its namespace.
func namespaceOf(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	if o.GetName() != defaultName {
		return nil
	}
	return engine.Namespace(ctx, env, o)
}

func reconcile(ctx context.Context, env engine.Env, ns *corev1.Namespace) error {
	there, err := engine.Find[corev1.ServiceAccount](ctx, env.Cache, ns.Name, defaultName)
	if err != nil {
		return err
	}
	make := Plan(ns, there)
	if make == nil {
		return nil
	}
	err = env.Client.Create(ctx, make)
	if apierrors.IsAlreadyExists(err) || engine.Terminating(err) {
		return nil
	}
	return err
}
