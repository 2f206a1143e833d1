// Package rootca publishes the CA bundle that verifies the API server: as the ConfigMap kube-root-ca.crt in each
// namespace, and as the ClusterTrustBundle of the signer kubernetes.io/kube-apiserver-serving. The ClusterTrustBundle
// of the signer kubernetes.io/kubelet-serving verifies nodes. Its invariant: the ConfigMap's data is exactly the
// bundle, and each signer has exactly one ClusterTrustBundle.
package rootca

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// New declares the reconciler of the ConfigMaps.
func New(bundle *Bundle) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "rootca", Account: "root-ca-cert-publisher",
		Watches: []engine.Watch{
			{Object: &corev1.Namespace{}, Changed: engine.SpecChanged},
			{Object: &corev1.ConfigMap{}, Map: func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
				if o.GetName() != name {
					return nil
				}
				return engine.Namespace(ctx, env, o)
			}},
		},
		Writes: []engine.Write{
			{Object: &corev1.ConfigMap{}, Parts: []engine.Part{engine.Create, engine.Spec, engine.Metadata}},
		},
		New: func(env engine.Env) engine.Func {
			bundle.Follow("rootca", func() {
				var all corev1.NamespaceList
				if err := env.Cache.List(context.Background(), &all); err != nil {
					env.Log.Warn("could not list namespaces to update kube-root-ca.crt", "error", err)
				}
				for _, req := range engine.Requests(all.Items, nil) {
					env.Enqueue(req, 0)
				}
			})
			return engine.Each(env, func(ctx context.Context, ns *corev1.Namespace) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, ns, bundle.PEM())
			})
		},
	}
}

func reconcile(ctx context.Context, env engine.Env, ns *corev1.Namespace, bundle string) error {
	there, err := engine.Find[corev1.ConfigMap](ctx, env.Cache, ns.Name, name)
	if err != nil {
		return err
	}
	want := Plan(ns, there, bundle)
	switch {
	case want == nil:
		return nil
	case there == nil:
		err := env.Client.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) || engine.Terminating(err) {
			return nil
		}
		return err
	}
	return client.IgnoreNotFound(env.Client.Update(ctx, want))
}
