package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// The agent in the server's process authenticates its callers through an in-process client.
func TestInProcessClientsAskForReviews(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	ctx := t.Context()
	c := w.clients.For(&user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes", user.AllAuthenticated}})

	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "nonsense"}}
	require.NoError(t, c.Create(ctx, review))
	require.False(t, review.Status.Authenticated)
	require.Equal(t, "invalid bearer token", review.Status.Error)
	require.True(t, apierrors.IsBadRequest(c.Create(ctx, &authenticationv1.TokenReview{})))

	may := func() bool {
		access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "ann",
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:        "get",
				Version:     "v1",
				Resource:    "nodes",
				Subresource: "metrics",
			},
		}}
		require.NoError(t, c.Create(ctx, access))
		return access.Status.Allowed
	}
	require.False(t, may())
	cs := w.clientset(w.http)
	_, err := cs.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "monitoring"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}}}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = cs.RbacV1().ClusterRoleBindings().Create(ctx,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "monitoring"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "monitoring"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ann"}}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	require.True(t, may())

	who := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, c.Create(ctx, who))
	require.Equal(t, "system:node:n", who.Status.UserInfo.Username)
}
