// Package bootstrap maintains the objects that every cluster has: the system namespaces, the API's Service and its
// endpoints, cluster DNS, the system priority classes. An object that is deleted or changed is restored at once.
//
// controllers.All does not list it. Its binding gives nodes their rights, so the API server runs it itself, with
// its own identity.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// everything is the only request. The objects are few, and some require others to exist.
var everything = engine.RequestFor("", "cluster")

// New declares the reconciler that maintains objects. Plan must know their kinds. wanted returns their desired
// state, under the same names, and when to call it again. 0 means when one of them changes.
func New(objects []client.Object,
	wanted func(context.Context) ([]client.Object, time.Duration, error)) *engine.Reconciler {
	r := &engine.Reconciler{
		Name: "bootstrap", Workers: 1,
		New: func(env engine.Env) engine.Func {
			// An object that was deleted before the watches began causes no event.
			env.Enqueue(everything, 0)
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				objects, next, err := wanted(ctx)
				if err != nil {
					return engine.Result{}, err
				}
				return engine.Result{RequeueAfter: next}, Ensure(ctx, env.Client, objects)
			}
		},
	}
	parts := []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata, engine.Status}
	for _, kind := range []client.Object{
		&corev1.Namespace{}, &corev1.Service{}, &discoveryv1.EndpointSlice{},
		&corev1.Endpoints{}, //nolint:staticcheck // deprecated, but old clients read the API's own address from it
		&schedulingv1.PriorityClass{}, &networkingv1.ServiceCIDR{}, &rbacv1.ClusterRoleBinding{},
		&storagev1.StorageClass{}, &snapshots.VolumeSnapshotClass{},
	} {
		names := map[client.ObjectKey]bool{}
		for _, o := range objects {
			if reflect.TypeOf(o) == reflect.TypeOf(kind) {
				names[client.ObjectKeyFromObject(o)] = true
			}
		}
		r.Watches = append(r.Watches, engine.Watch{Object: kind,
			Event: func(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
				if is == nil {
					is = was
				}
				if names[client.ObjectKeyFromObject(is)] {
					return []engine.Request{everything}
				}
				return nil
			}})
		r.Writes = append(r.Writes, engine.Write{Object: kind, Parts: parts})
	}
	return r
}

// Ensure writes missing and wrong objects in order. It continues after an object that cannot be written, and joins
// the errors.
func Ensure(ctx context.Context, c client.Client, objects []client.Object) error {
	var errs []error
	for _, o := range objects {
		if err := ensure(ctx, c, o); err != nil {
			errs = append(errs, fmt.Errorf("%T %s: %w", o, client.ObjectKeyFromObject(o), err))
		}
	}
	return errors.Join(errs...)
}

func ensure(ctx context.Context, c client.Client, want client.Object) error {
	have := want.DeepCopyObject().(client.Object)
	err := c.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		have = nil
	case err != nil:
		return err
	}
	op, next := Plan(want, have)
	switch op {
	case Create:
		err = c.Create(ctx, next)
		if engine.Terminating(err) {
			return nil // the end of the namespace causes an event
		}
		if _, hasStatus := want.(*networkingv1.ServiceCIDR); hasStatus && err == nil {
			return ensure(ctx, c, want) // Create ignores the status, so write it now
		}
	case Update:
		err = c.Update(ctx, next)
	case Status:
		err = c.Status().Update(ctx, next)
	case Replace:
		if len(next.GetFinalizers()) > 0 { // upstream's controllers may have set some
			next.SetFinalizers(nil)
			if err = c.Update(ctx, next); err != nil {
				return err
			}
		}
		uid := next.GetUID()
		if err = c.Delete(ctx, next, client.Preconditions{UID: &uid}); err == nil {
			err = c.Create(ctx, want.DeepCopyObject().(client.Object))
		}
	case Nothing:
		err = nil
	}
	return err
}
