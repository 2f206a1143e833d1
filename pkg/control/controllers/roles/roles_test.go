package roles_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers/roles"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func has(rules []rbacv1.PolicyRule, resource, verb string) bool {
	for _, r := range rules {
		for _, name := range r.Resources {
			for _, v := range r.Verbs {
				if name == resource && v == verb {
					return true
				}
			}
		}
	}
	return false
}

// watchRole returns a function that returns each state of a cluster role, beginning with the current one.
func watchRole(t *testing.T, c client.Interface, name string) func() *rbacv1.ClusterRole {
	w, err := c.Watch(t.Context(), &rbacv1.ClusterRoleList{}, ctrl.MatchingFields{"metadata.name": name})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return func() *rbacv1.ClusterRole {
		e := <-w.ResultChan()
		r, ok := e.Object.(*rbacv1.ClusterRole)
		require.True(t, ok, "%+v", e)
		return r
	}
}

// TestBootstrapAndAggregation: the reconcilers write the complete policy, and follow changes of aggregated roles.
func TestBootstrapAndAggregation(t *testing.T) {
	e := registrytest.Start(t, registrytest.Options{Kinds: assembled.Kinds()})
	c := e.As("admin")
	admin := watchRole(t, c, "admin")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- engine.Run(ctx, engine.Config{ClientFor: func(name string) client.Interface {
			return e.Clients.For(&user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}})
		}, Log: slog.New(slog.DiscardHandler)}, []*engine.Reconciler{
			roles.New(func() []ctrl.Object { return assembled.Roles() }, func() {}), roles.NewAggregation(),
		}, func() {})
	}()
	defer func() { stop(); require.NoError(t, <-ended) }()

	first := admin()
	require.True(t, has(first.Rules, "pods", "create"), "the first reader sees an aggregated role whole")
	require.True(t, has(first.Rules, "tasks", "create"), "what our kinds bring is gathered too")
	require.True(t, has(first.Rules, "tasks", "get"))

	// view aggregates this role, edit aggregates view, and admin aggregates edit.
	more := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			Name: "more", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"},
		},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, APIGroups: []string{"example.org"}, Resources: []string{"things"}},
		},
	}
	require.NoError(t, c.Create(ctx, more))
	for !has(admin().Rules, "things", "get") {
	}
	require.NoError(t, c.Delete(ctx, more))
	for has(admin().Rules, "things", "get") {
	}
}

// TestEnsureAgain: the next start restores lost rules, keeps added ones, and writes nothing else.
func TestEnsureAgain(t *testing.T) {
	e := registrytest.Start(t, registrytest.Options{Kinds: assembled.Kinds()})
	c, ctx := e.As("admin"), t.Context()
	require.NoError(t, roles.Ensure(ctx, c, assembled.Roles()))
	before := e.Cache.Revision()
	require.NoError(t, roles.Ensure(ctx, c, assembled.Roles()))
	require.Equal(t, before, e.Cache.Revision(), "a second pass writes nothing")

	get := func(name string) *rbacv1.ClusterRole {
		var r rbacv1.ClusterRole
		require.NoError(t, c.Get(ctx, ctrl.ObjectKey{Name: name}, &r))
		return r.DeepCopy()
	}
	changed := get("system:node-proxier")
	changed.Rules = []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{"example.org"}, Resources: []string{"things"}},
	}
	require.NoError(t, c.Update(ctx, changed))
	own := get("system:basic-user")
	own.Rules, own.Annotations[rbacv1.AutoUpdateAnnotationKey] = nil, "false"
	require.NoError(t, c.Update(ctx, own))
	gathered := get("edit")
	gathered.Rules = nil
	require.NoError(t, c.Update(ctx, gathered))
	var b rbacv1.ClusterRoleBinding
	require.NoError(t, c.Get(ctx, ctrl.ObjectKey{Name: "system:basic-user"}, &b))
	require.NoError(t, c.Delete(ctx, &b))
	other := b.DeepCopy()
	other.ResourceVersion, other.UID, other.RoleRef.Name = "", "", "view"
	require.NoError(t, c.Create(ctx, other))

	require.NoError(t, roles.Ensure(ctx, c, assembled.Roles()))
	proxier := get("system:node-proxier")
	require.True(t, has(proxier.Rules, "endpointslices", "watch"))
	require.True(t, has(proxier.Rules, "things", "get"), "what people added stays")
	require.Empty(t, get("system:basic-user").Rules, "autoupdate=false is honoured")
	require.Empty(t, get("edit").Rules, "left to the aggregation")
	require.NoError(t, c.Get(ctx, ctrl.ObjectKey{Name: "system:basic-user"}, &b))
	require.Equal(t, "system:basic-user", b.RoleRef.Name, "a binding to another role is replaced")
}

func TestRules(t *testing.T) {
	role := func(name, label string, resources ...string) *rbacv1.ClusterRole {
		r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "yes"}}}
		for _, s := range resources {
			r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, Resources: []string{s}})
		}
		return r
	}
	sum := role("sum", "a", "old")
	sum.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
		{MatchLabels: map[string]string{"b": "yes"}}, {MatchLabels: map[string]string{"a": "yes"}}}}
	all := []*rbacv1.ClusterRole{role("p", "a", "x", "y"), role("q", "b", "y", "z"), role("r", "c", "w"), sum}
	rules, err := roles.Rules(sum, all)
	require.NoError(t, err)
	var got []string
	for _, r := range rules {
		got = append(got, r.Resources[0])
	}
	require.Equal(t, []string{"y", "z", "x"}, got, "by selector, then by name, each rule once, without its own")
	sum.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{
		{Key: "k", Operator: "wrong"},
	}
	_, err = roles.Rules(sum, all)
	require.Error(t, err)
}
