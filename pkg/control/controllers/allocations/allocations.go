// Package allocations restores the IPAddresses of Services after a client deletes or changes them, as upstream's
// repairip does.
//
// The API server runs it itself, as it does bootstrap: the Service registry does the repair, because it reserves
// the addresses and ports.
package allocations

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// everything is the only request: each pass looks at all Services.
var everything = engine.RequestFor("", "services")

// New declares the reconciler. repair makes one pass. It must be safe to call while Services are written.
func New(repair func(context.Context) error) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "service-allocations", Workers: 1,
		Watches: []engine.Watch{{Object: &networkingv1.IPAddress{}, Event: changed}},
		Reads:   []client.Object{&corev1.Service{}},
		New: func(env engine.Env) engine.Func {
			// An IPAddress that was deleted before the watch began causes no event.
			env.Enqueue(everything, 0)
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				return engine.Result{}, repair(ctx)
			}
		},
	}
}

// changed requests a pass when an existing Service may have lost an address. A deleted Service's addresses go with it.
func changed(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	before, ok := was.(*networkingv1.IPAddress)
	if !ok || before.Spec.ParentRef == nil || before.Spec.ParentRef.Resource != "services" {
		return nil
	}
	if after, ok := is.(*networkingv1.IPAddress); ok && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil
	}
	var service corev1.Service
	err := env.Cache.Get(ctx,
		client.ObjectKey{Namespace: before.Spec.ParentRef.Namespace, Name: before.Spec.ParentRef.Name}, &service)
	if client.IgnoreNotFound(err) == nil && err != nil {
		return nil
	}
	return []engine.Request{everything}
}
