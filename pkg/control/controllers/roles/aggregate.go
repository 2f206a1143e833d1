package roles

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// every is the only request: any cluster role may affect any aggregated one.
var every = engine.RequestFor("", "clusterroles")

// NewAggregation declares the reconciler that sets the rules of aggregated cluster roles.
//
// Decision: upstream uses server-side apply. An update needs no schemas of the built-in kinds, whose loading takes
// as long as the rest of the server's start.
func NewAggregation() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "clusterrole-aggregation", Workers: 1,
		Watches: []engine.Watch{
			{Object: &rbacv1.ClusterRole{}, Map: func(context.Context, engine.Env, client.Object) []engine.Request {
				return []engine.Request{every}
			}},
		},
		Writes: []engine.Write{{Object: &rbacv1.ClusterRole{}, Parts: []engine.Part{engine.Spec}}},
		New: func(env engine.Env) engine.Func {
			return func(ctx context.Context, _ engine.Request) (engine.Result, error) {
				return engine.Result{}, aggregate(ctx, env)
			}
		},
	}
}

// aggregate makes one pass. Its writes enqueue it again, for roles that aggregate aggregated roles.
func aggregate(ctx context.Context, env engine.Env) error {
	var list rbacv1.ClusterRoleList
	if err := env.Cache.List(ctx, &list); err != nil {
		return err
	}
	roles := make([]*rbacv1.ClusterRole, len(list.Items))
	for i := range list.Items {
		roles[i] = &list.Items[i]
	}
	slices.SortFunc(roles, byName)
	var errs []error
	for _, r := range roles {
		if r.AggregationRule == nil {
			continue
		}
		rules, err := Rules(r, roles)
		if err == nil && !equality.Semantic.DeepEqual(rules, r.Rules) {
			next := r.DeepCopy()
			next.Rules = rules
			err = client.IgnoreNotFound(env.Client.Update(ctx, next))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("cluster role %s: %w", r.Name, err))
		}
	}
	return errors.Join(errs...)
}
