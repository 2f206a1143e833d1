package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-helpers/auth/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/registry"
	"github.com/coracle-dev/coracle/pkg/run"
)

// Roles writes upstream's bootstrap roles and bindings where they are missing or lack a rule, once, and then keeps the rules
// of aggregated cluster roles (admin, edit, view, and people's own) up to date. It is a component that is ready at once: until the roles
// are there system:masters and nodes can work already, and that is all a cluster needs to start.
type Roles struct {
	registry *registry.Registry
	cache    *cache.Cache
	table    *kind.Table
	log      *slog.Logger
	ready    chan struct{}
}

var _ run.Component = (*Roles)(nil)

// NewRoles makes the component from the server's configuration.
func NewRoles(cfg Config) (*Roles, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Roles{cfg.Registry, cfg.Cache, cfg.Kinds.Table(), cfg.Logger, make(chan struct{})}, nil
}

// Name is "roles".
func (r *Roles) Name() string { return "roles" }

// Ready is closed when Run begins.
func (r *Roles) Ready() <-chan struct{} { return r.ready }

// Run writes the roles, then aggregates until ctx ends.
func (r *Roles) Run(ctx context.Context) error {
	close(r.ready)
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	if err := r.Reconcile(ctx); err != nil && ctx.Err() == nil {
		r.log.Error("bootstrap roles could not be written; only administrators and nodes can use the cluster", "error", err)
	}
	return r.aggregate(ctx)
}

// Reconcile makes one pass. It may be repeated.
func (r *Roles) Reconcile(ctx context.Context) error {
	var objects []client.Object
	clusterRoles := bootstrappolicy.ClusterRoles()
	for i := range clusterRoles {
		objects = append(objects, &clusterRoles[i])
	}
	bindings := bootstrappolicy.ClusterRoleBindings()
	for i := range bindings {
		objects = append(objects, &bindings[i])
	}
	for _, group := range [][]rbacv1.ClusterRole{bootstrappolicy.ControllerRoles()} {
		for i := range group {
			objects = append(objects, &group[i])
		}
	}
	controllers := bootstrappolicy.ControllerRoleBindings()
	for i := range controllers {
		objects = append(objects, &controllers[i])
	}
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for i := range roles {
			roles[i].Namespace = namespace
			objects = append(objects, &roles[i])
		}
	}
	for namespace, list := range bootstrappolicy.NamespaceRoleBindings() {
		for i := range list {
			list[i].Namespace = namespace
			objects = append(objects, &list[i])
		}
	}
	objects = append(objects, ownRoles()...)
	// Aggregated roles come with their rules, so that the first reader sees them whole.
	for i := range clusterRoles {
		if rule := clusterRoles[i].AggregationRule; rule != nil {
			clusterRoles[i].Rules = gather(rule, clusterRoles[i].Name, slices.Values(pointers(clusterRoles)))
		}
	}
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic} {
		if err := r.namespace(ctx, name); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for _, obj := range objects {
		g.Go(func() error {
			if err := r.ensure(ctx, obj); err != nil {
				return fmt.Errorf("%T %s: %w", obj, obj.GetName(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// namespace makes a namespace that roles live in, if nobody has yet.
func (r *Roles) namespace(ctx context.Context, name string) error {
	row := r.table.ByGVR(corev1.SchemeGroupVersion.WithResource("namespaces"))
	if r.cache.Get(row, "", name) != nil {
		return nil
	}
	_, err := r.registry.Create(ctx, registry.Target{Resource: row}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func pointers(in []rbacv1.ClusterRole) []*rbacv1.ClusterRole {
	out := make([]*rbacv1.ClusterRole, len(in))
	for i := range in {
		out[i] = &in[i]
	}
	return out
}

func (r *Roles) row(obj client.Object) *kind.Resource {
	name := "clusterroles"
	switch obj.(type) {
	case *rbacv1.ClusterRoleBinding:
		name = "clusterrolebindings"
	case *rbacv1.Role:
		name = "roles"
	case *rbacv1.RoleBinding:
		name = "rolebindings"
	}
	return r.table.ByGVR(rbacv1.SchemeGroupVersion.WithResource(name))
}

// ensure creates obj, or adds what the stored one lacks. What people added stays, and who set the annotation
// rbac.authorization.kubernetes.io/autoupdate to false is left alone.
func (r *Roles) ensure(ctx context.Context, obj client.Object) error {
	row := r.row(obj)
	t := registry.Target{Resource: row, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	e := r.cache.Get(row, t.Namespace, t.Name)
	if e == nil {
		create := t
		create.Name = ""
		_, err := r.registry.Create(ctx, create, obj, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	if e.Object.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false" {
		return nil
	}
	next := e.Object.DeepCopyObject().(client.Object)
	next.SetLabels(merged(next.GetLabels(), obj.GetLabels()))
	next.SetAnnotations(merged(next.GetAnnotations(), obj.GetAnnotations()))
	switch want := obj.(type) {
	case *rbacv1.ClusterRole:
		have := next.(*rbacv1.ClusterRole)
		have.AggregationRule = want.AggregationRule
		if want.AggregationRule == nil {
			have.Rules = withMissing(have.Rules, want.Rules)
		}
	case *rbacv1.Role:
		have := next.(*rbacv1.Role)
		have.Rules = withMissing(have.Rules, want.Rules)
	case *rbacv1.ClusterRoleBinding:
		have := next.(*rbacv1.ClusterRoleBinding)
		have.Subjects = withSubjects(have.Subjects, want.Subjects)
	case *rbacv1.RoleBinding:
		have := next.(*rbacv1.RoleBinding)
		have.Subjects = withSubjects(have.Subjects, want.Subjects)
	}
	if equality.Semantic.DeepEqual(next, e.Object) {
		return nil
	}
	_, err := r.registry.Update(ctx, t, next, metav1.UpdateOptions{})
	return err
}

func merged(have, want map[string]string) map[string]string {
	if len(want) == 0 {
		return have
	}
	out := maps.Clone(have)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, want)
	return out
}

func withMissing(have, want []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	_, missing := validation.Covers(have, want)
	return append(have, missing...)
}

func withSubjects(have, want []rbacv1.Subject) []rbacv1.Subject {
	for _, s := range want {
		if !slices.Contains(have, s) {
			have = append(have, s)
		}
	}
	return have
}

// gather joins the rules of the roles that an aggregation rule selects.
func gather(rule *rbacv1.AggregationRule, self string, roles func(func(*rbacv1.ClusterRole) bool)) []rbacv1.PolicyRule {
	out := []rbacv1.PolicyRule{}
	for i := range rule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&rule.ClusterRoleSelectors[i])
		if err != nil {
			continue
		}
		for role := range roles {
			if role.Name == self || !selector.Matches(labels.Set(role.Labels)) {
				continue
			}
			for _, r := range role.Rules {
				if !slices.ContainsFunc(out, func(x rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(x, r) }) {
					out = append(out, r)
				}
			}
		}
	}
	return out
}

// aggregate rewrites aggregated cluster roles when a cluster role changes.
func (r *Roles) aggregate(ctx context.Context) error {
	row := r.row(&rbacv1.ClusterRole{})
	for ctx.Err() == nil {
		w, _, _, err := r.cache.Watch(row, cache.Query{}, -1)
		if err != nil {
			return err
		}
		for err == nil {
			if again := r.aggregateOnce(ctx, row); again != nil && ctx.Err() == nil {
				r.log.Warn("a cluster role could not be aggregated", "error", again)
			}
			_, err = w.Next(ctx)
		}
		w.Close()
	}
	return nil
}

func (r *Roles) aggregateOnce(ctx context.Context, row *kind.Resource) error {
	roles := all[*rbacv1.ClusterRole](r.cache, row, "")
	// By name, so that the same roles give the same rules.
	slices.SortFunc(roles, func(a, b *rbacv1.ClusterRole) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	for range len(roles) { // roles may aggregate roles that aggregate; a ring ends here
		changed := false
		for i, role := range roles {
			if role.AggregationRule == nil {
				continue
			}
			rules := gather(role.AggregationRule, role.Name, slices.Values(roles))
			if covers(rules, role.Rules) {
				continue
			}
			next := role.DeepCopy()
			next.Rules = rules
			res, err := r.registry.Update(ctx, registry.Target{Resource: row, Name: role.Name}, next, metav1.UpdateOptions{})
			if err != nil {
				return err
			}
			if res.Entry != nil {
				roles[i] = res.Entry.Object.(*rbacv1.ClusterRole)
			}
			changed = true
		}
		if !changed {
			break
		}
	}
	return nil
}

// covers reports whether two sets of rules hold the same rules, in any order.
func covers(a, b []rbacv1.PolicyRule) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.ContainsFunc(b, func(y rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(x, y) }) {
			return false
		}
	}
	return true
}
