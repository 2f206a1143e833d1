package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestRightsFollowFromTheDeclaration(t *testing.T) {
	r := &Reconciler{
		Name:    "web",
		Watches: []Watch{{Object: &appsv1.Deployment{}}, {Object: &corev1.Pod{}}},
		Reads:   []client.Object{&networkingv1.Ingress{}},
		Writes: []Write{
			{Object: &appsv1.Deployment{}, Parts: []Part{Status, Finalizers}},
			{Object: &corev1.Pod{}, Parts: []Part{Create, Delete}},
		},
	}
	rules, err := r.Rights(clientgoscheme.Scheme)
	require.NoError(t, err)
	require.Equal(t, []rbacv1.PolicyRule{
		rule("", "events", "create", "patch", "update"),
		rule("", "pods", "create", "delete", "get", "list", "watch"),
		rule("apps", "deployments", "get", "list", "patch", "update", "watch"),
		rule("apps", "deployments/finalizers", "update"), // the pods have owner references
		rule("apps", "deployments/status", "patch", "update"),
		rule("networking.k8s.io", "ingresses", "get", "list", "watch"),
	}, rules)
	r.Watches[0].Object = &rbacv1.RoleBinding{}
	r.Reads = append(r.Reads, &unknown{})
	_, err = r.Rights(clientgoscheme.Scheme)
	require.ErrorContains(t, err, "reconciler web: ", "a kind that is not in the scheme")
}

type unknown struct{ corev1.Pod }

// The rules that are printed for an operator grant no more than its reconcilers need.
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
	require.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "services"}, Verbs: []string{"get", "list"}}, one, path,
	}, Merge([]rbacv1.PolicyRule{pods, one, path, services}))
}
