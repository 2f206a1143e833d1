package roles

import (
	"cmp"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Plan compares a required role or binding with the existing one, nil for none, by upstream's rules. It adds
// missing rules and subjects, and keeps others. It replaces a binding to another role, and leaves objects alone
// whose annotation rbac.authorization.kubernetes.io/autoupdate is false. The returned object is the one to write.
func Plan(want, have client.Object) (reconciliation.ReconcileOperation, client.Object, error) {
	role := func(want, have reconciliation.RuleOwner) (reconciliation.ReconcileOperation, client.Object, error) {
		res, err := (&reconciliation.ReconcileRoleOptions{Role: want, Client: thereRole{have}}).Run()
		if err != nil || res.Protected {
			return reconciliation.ReconcileNone, nil, err
		}
		return written(res.Operation, res.Role.GetObject())
	}
	binding := func(want, have reconciliation.RoleBinding) (reconciliation.ReconcileOperation, client.Object, error) {
		res, err := (&reconciliation.ReconcileRoleBindingOptions{RoleBinding: want, Client: thereBinding{have}}).Run()
		if err != nil || res.Protected {
			return reconciliation.ReconcileNone, nil, err
		}
		return written(res.Operation, res.RoleBinding.GetObject())
	}
	switch w := want.(type) {
	case *rbacv1.ClusterRole:
		h, ok := have.(*rbacv1.ClusterRole)
		if !ok {
			return role(reconciliation.ClusterRoleRuleOwner{ClusterRole: w}, nil)
		}
		if w.AggregationRule != nil { // NewAggregation maintains the rules of an existing role
			w = w.DeepCopy()
			w.Rules = nil
		}
		return role(reconciliation.ClusterRoleRuleOwner{ClusterRole: w}, reconciliation.ClusterRoleRuleOwner{ClusterRole: h})
	case *rbacv1.Role:
		h, ok := have.(*rbacv1.Role)
		if !ok {
			return role(reconciliation.RoleRuleOwner{Role: w}, nil)
		}
		return role(reconciliation.RoleRuleOwner{Role: w}, reconciliation.RoleRuleOwner{Role: h})
	case *rbacv1.ClusterRoleBinding:
		h, ok := have.(*rbacv1.ClusterRoleBinding)
		if !ok {
			return binding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: w}, nil)
		}
		return binding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: w},
			reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: h})
	case *rbacv1.RoleBinding:
		h, ok := have.(*rbacv1.RoleBinding)
		if !ok {
			return binding(reconciliation.RoleBindingAdapter{RoleBinding: w}, nil)
		}
		return binding(reconciliation.RoleBindingAdapter{RoleBinding: w}, reconciliation.RoleBindingAdapter{RoleBinding: h})
	}
	return reconciliation.ReconcileNone, nil, fmt.Errorf("%T is neither a role nor a binding", want)
}

func written(op reconciliation.ReconcileOperation, o any) (reconciliation.ReconcileOperation, client.Object, error) {
	obj, ok := o.(client.Object)
	if !ok {
		return reconciliation.ReconcileNone, nil, fmt.Errorf("%T is no object", o)
	}
	return op, obj, nil
}

// thereRole and thereBinding serve existing objects to upstream's comparison, which writes nothing without Confirm.
type thereRole struct{ reconciliation.RuleOwner }

func (t thereRole) Get(_, name string) (reconciliation.RuleOwner, error) {
	if t.RuleOwner == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}, name)
	}
	return t.RuleOwner, nil
}

func (t thereRole) Create(o reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return o, nil
}
func (t thereRole) Update(o reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return o, nil
}

type thereBinding struct{ reconciliation.RoleBinding }

func (t thereBinding) Get(_, name string) (reconciliation.RoleBinding, error) {
	if t.RoleBinding == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: "rolebindings"}, name)
	}
	return t.RoleBinding, nil
}

func (t thereBinding) Delete(string, string, types.UID) error { return nil }
func (t thereBinding) Create(o reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return o, nil
}
func (t thereBinding) Update(o reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return o, nil
}

// Rules joins the rules of the cluster roles that an aggregated role selects, in the order of selectors and roles.
// The roles must be sorted by name, so that the result is deterministic.
func Rules(role *rbacv1.ClusterRole, roles []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	out := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		for _, from := range roles {
			if from.Name == role.Name || !selector.Matches(labels.Set(from.Labels)) {
				continue
			}
			for _, r := range from.Rules {
				if !slices.ContainsFunc(out, func(x rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(x, r) }) {
					out = append(out, r)
				}
			}
		}
	}
	return out, nil
}

// Aggregate sets the rules of the aggregated roles among objects, so that their first write is complete.
func Aggregate(objects []client.Object) error {
	var roles []*rbacv1.ClusterRole
	for _, o := range objects {
		if r, ok := o.(*rbacv1.ClusterRole); ok {
			roles = append(roles, r)
		}
	}
	slices.SortFunc(roles, byName)
	for range roles { // aggregated roles may select aggregated roles; this bounds cycles
		changed := false
		for _, r := range roles {
			if r.AggregationRule == nil {
				continue
			}
			rules, err := Rules(r, roles)
			if err != nil {
				return fmt.Errorf("cluster role %s: %w", r.Name, err)
			}
			if !equality.Semantic.DeepEqual(rules, r.Rules) {
				r.Rules, changed = rules, true
			}
		}
		if !changed {
			break
		}
	}
	return nil
}

func byName(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) }
