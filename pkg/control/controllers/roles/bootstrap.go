// Package roles writes the roles and bindings that every cluster has, and maintains the rules of aggregated cluster
// roles. Its invariants: rules that users added to a role stay. An aggregated role has exactly the rules of the roles
// that it selects. controllers.All does not list New: the other reconcilers need the rights that it writes, so the API
// server runs it itself, with its own identity.
package roles

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

const atOnce = 32

// New declares the reconciler that writes missing or incomplete objects, once per start of the server. As
// upstream, an object that users delete later stays deleted until the next start. objects is called for each
// attempt, done after a successful one.
func New(objects func() []client.Object, done func()) *engine.Reconciler {
	r := &engine.Reconciler{
		Name: "roles", Workers: 1,
		Reads: []client.Object{&corev1.Namespace{}},
		Writes: []engine.Write{
			{Object: &corev1.Namespace{}, Parts: []engine.Part{engine.Create}},
		},
		New: func(env engine.Env) engine.Func {
			env.Enqueue(engine.RequestFor("", "cluster"), 0)
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				if err := Ensure(ctx, env.Client, objects()); err != nil {
					return engine.Result{}, fmt.Errorf("bootstrap roles, without which only administrators and nodes can use the "+
						"cluster: %w", err)
				}
				done()
				return engine.Result{}, nil
			}
		},
	}
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
	} {
		r.Reads = append(r.Reads, o)
		r.Writes = append(r.Writes, engine.Write{
			Object: o, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata},
		})
	}
	return r
}

// Ensure writes missing and incomplete objects. It first fills in the rules of aggregated roles, which it writes
// after the roles that they select.
func Ensure(ctx context.Context, c client.Client, objects []client.Object) error {
	if err := Aggregate(objects); err != nil {
		return err
	}
	var plain, aggregated []client.Object
	namespaces := map[string]bool{}
	for _, o := range objects {
		if ns := o.GetNamespace(); ns != "" && !namespaces[ns] {
			namespaces[ns] = true
			if err := ensureNamespace(ctx, c, ns); err != nil {
				return fmt.Errorf("namespace %s: %w", ns, err)
			}
		}
		if r, ok := o.(*rbacv1.ClusterRole); ok && r.AggregationRule != nil {
			aggregated = append(aggregated, o)
			continue
		}
		plain = append(plain, o)
	}
	for _, list := range [][]client.Object{plain, aggregated} {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(atOnce)
		for _, o := range list {
			g.Go(func() error {
				if err := ensure(ctx, c, o); err != nil {
					return fmt.Errorf("%T %s: %w", o, client.ObjectKeyFromObject(o), err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func ensureNamespace(ctx context.Context, c client.Client, name string) error {
	var ns corev1.Namespace
	err := c.Get(ctx, client.ObjectKey{Name: name}, &ns)
	if !apierrors.IsNotFound(err) {
		return err
	}
	err = c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func ensure(ctx context.Context, c client.Client, want client.Object) error {
	have := empty(want)
	err := c.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		have = nil
	case err != nil:
		return err
	}
	op, next, err := Plan(want, have)
	if err != nil {
		return err
	}
	switch op {
	case reconciliation.ReconcileCreate:
		if err = c.Create(ctx, next); apierrors.IsAlreadyExists(err) {
			return nil // another writer created it; it counts until the next start
		}
		return err
	case reconciliation.ReconcileUpdate:
		return c.Update(ctx, next)
	case reconciliation.ReconcileRecreate:
		if err := engine.Remove(ctx, c, have); err != nil {
			return err
		}
		return c.Create(ctx, next)
	}
	return nil
}

func empty(o client.Object) client.Object {
	switch o.(type) {
	case *rbacv1.ClusterRole:
		return &rbacv1.ClusterRole{}
	case *rbacv1.ClusterRoleBinding:
		return &rbacv1.ClusterRoleBinding{}
	case *rbacv1.Role:
		return &rbacv1.Role{}
	}
	return &rbacv1.RoleBinding{}
}
