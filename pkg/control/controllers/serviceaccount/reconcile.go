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
			return func(ctx context.Context, req engine.Request) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, req.Name)
			}
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

func reconcile(ctx context.Context, env engine.Env, namespace string) error {
	var ns corev1.Namespace
	if err := env.Cache.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return client.IgnoreNotFound(err)
	}
	var there *corev1.ServiceAccount
	var sa corev1.ServiceAccount
	switch err := env.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: defaultName}, &sa); {
	case err == nil:
		there = &sa
	case !apierrors.IsNotFound(err):
		return err
	}
	make := Plan(&ns, there)
	if make == nil {
		return nil
	}
	err := env.Client.Create(ctx, make)
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
