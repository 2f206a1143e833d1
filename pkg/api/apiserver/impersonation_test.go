package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A permission to impersonate for one kind of request (KEP-5284) does not allow others.
func TestConstrainedImpersonation(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	admin := w.clientset(w.http)
	bind := func(user string, rules ...rbacv1.PolicyRule) {
		_, err := admin.RbacV1().ClusterRoles().Create(t.Context(),
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	bind("bob", rbacv1.PolicyRule{
		Verbs:     []string{"list", "create"},
		APIGroups: []string{""},
		Resources: []string{"configmaps"},
	})
	bind("deputy",
		rbacv1.PolicyRule{
			Verbs:         []string{"impersonate:user-info"},
			APIGroups:     []string{"authentication.k8s.io"},
			Resources:     []string{"users"},
			ResourceNames: []string{"bob"},
		},
		rbacv1.PolicyRule{
			Verbs:     []string{"impersonate-on:user-info:list"},
			APIGroups: []string{""},
			Resources: []string{"configmaps"},
		})

	const maps = "/api/v1/namespaces/d/configmaps"
	deputy := w.as("deputy")
	require.Equal(t, 200, w.do(deputy, "GET", maps, "", "Impersonate-User", "bob").code)
	require.Equal(t, 403, w.do(deputy, "GET", maps, "").code, "as itself")
	require.Equal(t, 403, w.do(deputy, "POST", maps, someMap, "Impersonate-User", "bob").code,
		"bob may, but not the deputy for him")
	require.Equal(t, 403, w.do(deputy, "GET", maps, "", "Impersonate-User", "alice").code)
}

// A create of the "bindings" resource binds a pod, like the pod's subresource.
func TestBindings(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	const bindings = "/api/v1/namespaces/d/bindings"
	binding := func(pod string) string {
		return `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"` + pod + `"},"target":{"kind":"Node","name":"n"}}`
	}
	_, err := w.clientset(w.http).CoreV1().ServiceAccounts("d").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = w.clientset(w.http).CoreV1().Pods("d").Create(t.Context(), podNamed("p"), metav1.CreateOptions{})
	require.NoError(t, err)
	r := w.do(w.http, "POST", bindings, binding("p"))
	require.Equal(t, 201, r.code, "%s", r.body)
	require.Equal(t, metav1.StatusSuccess, r.status(t).Status)
	p, err := w.clientset(w.http).CoreV1().Pods("d").Get(t.Context(), "p", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "n", p.Spec.NodeName)
	require.Equal(t, 409, w.do(w.http, "POST", bindings, binding("p")).code)
	require.Equal(t, 404, w.do(w.http, "POST", bindings, binding("none")).code)
	require.Equal(t, 405, w.do(w.http, "GET", bindings, "").code)
}
