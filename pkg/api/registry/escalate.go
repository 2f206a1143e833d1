package registry

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// checkEscalation rejects roles and bindings that grant more than their author has, unless the author has the verb
// escalate or bind; policies whose parameters the author may not read; certificates of signers that the author may
// not act as; claims of devices that the author may not make; and objects that require permissions that the author
// lacks. It allows everything to system:masters or without an authorizer.
func (c *call) checkEscalation(obj, old runtime.Object) error {
	if err := c.mayReadParams(obj, old); err != nil {
		return err
	}
	if err := c.maySign(obj, old); err != nil {
		return err
	}
	if err := c.mayClaim(obj, old); err != nil {
		return err
	}
	if err := c.holdsRequired(obj, old); err != nil {
		return err
	}
	p := c.authorizer.Load()
	if p == nil || c.user == nil || c.Resource.Group != rbac.GroupName || rbacregistry.EscalationAllowed(c.ctx) {
		return nil
	}
	if old != nil && rbacregistry.IsOnlyMutatingGCFields(obj, old, equality.Semantic) {
		return nil
	}
	switch o := obj.(type) {
	case *rbac.Role:
		if !rbacregistry.RoleEscalationAuthorized(c.ctx, *p) {
			return c.mayGrant(o.Name, o.Rules)
		}
	case *rbac.ClusterRole:
		if rbacregistry.RoleEscalationAuthorized(c.ctx, *p) {
			return nil
		}
		if err := c.mayGrant(o.Name, o.Rules); err != nil {
			return err
		}
		was, _ := old.(*rbac.ClusterRole)
		if (aggregates(o) || was != nil && aggregates(was)) && c.mayGrant(o.Name, everything) != nil {
			return apierrors.NewForbidden(c.gr(), o.Name,
				errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
	case *rbac.RoleBinding:
		if !rbacregistry.BindingAuthorized(c.ctx, o.RoleRef, c.Namespace, *p) {
			return c.mayBind(o.Name, o.RoleRef)
		}
	case *rbac.ClusterRoleBinding:
		if !rbacregistry.BindingAuthorized(c.ctx, o.RoleRef, "", *p) {
			return c.mayBind(o.Name, o.RoleRef)
		}
	}
	return nil
}

// holdsRequired rejects an object whose kind requires permissions that its author does not have.
func (c *call) holdsRequired(obj, old runtime.Object) error {
	p := c.authorizer.Load()
	if p == nil || c.user == nil || c.Resource.Requires == nil || c.Subresource != "" {
		return nil
	}
	was, _ := old.(client.Object)
	for _, need := range c.Resource.Requires(obj.(client.Object), was) {
		decision, _, err := (*p).Authorize(c.ctx, authorizer.AttributesRecord{
			User: c.user, Verb: need.Verb, Namespace: c.Namespace, APIGroup: need.Group, Resource: need.Resource,
			ResourceRequest: true,
		})
		if decision == authorizer.DecisionAllow {
			continue
		}
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		return apierrors.NewForbidden(c.gr(), c.Name, fmt.Errorf("%s, and user %q cannot %s %s in the namespace %q",
			need.Why, c.user.GetName(), need.Verb, need.Resource, c.Namespace))
	}
	return nil
}

var everything = []rbac.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

func aggregates(r *rbac.ClusterRole) bool {
	return r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

func (c *call) mayGrant(name string, rules []rbac.PolicyRule) error {
	granted := make([]rbacv1.PolicyRule, len(rules))
	for i := range rules {
		if err := rbacv1helpers.Convert_rbac_PolicyRule_To_v1_PolicyRule(&rules[i], &granted[i], nil); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	return c.confirm(name, granted)
}

// Limits on the comparison of granted rules with the author's: single permissions in the granted rules, and the
// product of that number with the number of words in the author's rules.
const (
	maxPermissions = 50_000
	maxRuleWords   = 20_000_000
)

// confirm refuses rules that grant more than the author has. Upstream compares each combination of verb, group,
// resource and name: a rule with 1,000 of each would have 10^12.
func (c *call) confirm(name string, granted []rbacv1.PolicyRule) error {
	namespace, _ := request.NamespaceFrom(c.ctx)
	held, _ := c.rules().RulesFor(c.ctx, c.user, namespace) // as upstream, with the roles that can be read
	permissions, words := 0, 0
	for i := range granted {
		r := &granted[i]
		objects := len(r.APIGroups) * len(r.Resources) * max(1, len(r.ResourceNames))
		permissions += len(r.Verbs) * (objects + len(r.NonResourceURLs))
	}
	for i := range held {
		r := &held[i]
		words += 1 + len(r.Verbs) + len(r.APIGroups) + len(r.Resources) + len(r.ResourceNames) + len(r.NonResourceURLs)
	}
	if permissions > maxPermissions || permissions*words > maxRuleWords {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the rules combine verbs, apiGroups, resources and "+
			"resourceNames to %d permissions, which are too many to compare with those of their author (at most %d): "+
			"list fewer in a rule, or use an account that has the verb escalate for roles or bind for bindings", permissions,
			maxPermissions))
	}
	if err := rbacvalidation.ConfirmNoEscalation(c.ctx, c.rules(), granted); err != nil {
		return apierrors.NewForbidden(c.gr(), name, errors.New(bounded.Text(err.Error(), maxDetail)))
	}
	return nil
}

func (c *call) mayBind(name string, ref rbac.RoleRef) error {
	rules, err := c.rules().GetRoleReferenceRules(c.ctx,
		rbacv1.RoleRef{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}, c.Namespace)
	if err != nil {
		return status(err, c.gr(), name)
	}
	return c.confirm(name, rules)
}

func (c *call) rules() rbacvalidation.AuthorizationRuleResolver {
	s := rbacReader{c.Registry}
	return rbacvalidation.NewDefaultRuleResolver(s, s, s, s)
}

type rbacReader struct{ r *Registry }

func readRBAC[T any](r *Registry, kindName, namespace, name string) (*T, error) {
	row := r.kinds.Table().ByGVK(rbacv1.SchemeGroupVersion.WithKind(kindName))
	if row == nil {
		return nil, apierrors.NewNotFound(rbac.Resource(kindName), name)
	}
	if e := r.cache.Get(row, namespace, name); e != nil {
		if o, ok := any(e.Object).(*T); ok {
			return o, nil
		}
	}
	return nil, apierrors.NewNotFound(row.GR(), name)
}

func listRBAC[T any](r *Registry, kindName, namespace string) []*T {
	row := r.kinds.Table().ByGVK(rbacv1.SchemeGroupVersion.WithKind(kindName))
	if row == nil {
		return nil
	}
	entries, _ := r.cache.List(row, cache.Query{Namespace: namespace})
	out := make([]*T, 0, len(entries))
	for _, e := range entries {
		if o, ok := any(e.Object).(*T); ok {
			out = append(out, o)
		}
	}
	return out
}

func (s rbacReader) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	return readRBAC[rbacv1.Role](s.r, "Role", namespace, name)
}

func (s rbacReader) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	return readRBAC[rbacv1.ClusterRole](s.r, "ClusterRole", "", name)
}

func (s rbacReader) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return listRBAC[rbacv1.RoleBinding](s.r, "RoleBinding", namespace), nil
}

func (s rbacReader) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return listRBAC[rbacv1.ClusterRoleBinding](s.r, "ClusterRoleBinding", ""), nil
}
