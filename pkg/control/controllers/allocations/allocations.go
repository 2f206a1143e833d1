// Package allocations restores the IPAddresses of Services when somebody deletes or changes them, as upstream's
// repairip does.
//
// Like bootstrap it is run by the server itself: the repair is the registry's, which reserves addresses and ports.
package allocations

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// everything is the one request: a pass looks at all Services.
var everything = engine.RequestFor("", "services")

// New declares the reconciler. repair makes one pass, and is safe beside writes of Services.
func New(repair func(context.Context) error) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "service-allocations", Workers: 1,
		Watches: []engine.Watch{{Object: &networkingv1.IPAddress{}, Event: changed}},
		Reads:   []client.Object{&corev1.Service{}},
		New: func(env engine.Env) engine.Func {
			// What was deleted before the watch began makes no event.
			env.Enqueue(everything, 0)
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				return engine.Result{}, repair(ctx)
			}
		},
	}
}

// changed asks for a pass when a Service that is still there may have lost an address. One that was deleted took its
// addresses along.
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
