// Package roles writes the roles and bindings that every cluster has, and keeps the rules of aggregated cluster roles.
//
// Its invariants: what people added to a role stays, and an aggregated role has the rules of the roles it selects and
// no others. New is not in the list of reconcile.All, since the other reconcilers have their rights by what it writes:
// it must run with the API server's own identity, and the server runs it by itself.
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

// atOnce is how many objects are written at the same time.
const atOnce = 32

// New declares the reconciler that writes the objects where they are missing or lack something, once for each start of
// the server, as upstream does: what people delete later stays deleted until then. objects is called for each attempt,
// and done after one that succeeded.
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

// Ensure writes what is missing or lacks something. Aggregated roles come after those that they gather from, and with
// their rules, which it fills in.
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

// ensureNamespace makes a namespace that roles live in, if nobody has yet.
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
			return nil // somebody else is faster: what they made counts until the next start
		}
		return err
	case reconciliation.ReconcileUpdate:
		return c.Update(ctx, next)
	case reconciliation.ReconcileRecreate:
		if err := c.Delete(ctx, have, engine.Preconditions(have)); client.IgnoreNotFound(err) != nil {
			return err
		}
		return c.Create(ctx, next)
	}
	return nil
}

// empty is a new object of the same kind.
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
