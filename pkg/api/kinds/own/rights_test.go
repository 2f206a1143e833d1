package own

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The rules that are printed for an operator grant no more than its controllers need.
func TestRulesThatAreLimitedStayLimited(t *testing.T) {
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "get"}}
	one := rbacv1.PolicyRule{
		APIGroups:     []string{""},
		Resources:     []string{"secrets"},
		ResourceNames: []string{"mine"},
		Verbs:         []string{"get"},
	}
	path := rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}
	services := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list"}}
	of := func(rules ...rbacv1.PolicyRule) Rights {
		return func() (controller, edit, view []rbacv1.PolicyRule) { return rules, nil, nil }
	}
	require.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "services"}, Verbs: []string{"get", "list"}}, one, path,
	}, Together(of(pods, one), of(path, services)))
}
