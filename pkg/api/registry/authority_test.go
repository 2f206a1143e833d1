package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

func rbacAt(k, name string) Target { return at(rbacv1.SchemeGroupVersion.WithKind(k), "work", name) }

// The user ann may write roles and bindings and read config maps, nothing else.
func TestNobodyGivesMoreThanTheyHave(t *testing.T) {
	h := build(t)
	reads := rbacReader{h.Registry}
	h.UseAuthorizer(rbac.New(reads, reads, reads, reads))
	role := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}, Rules: rules}
	}
	may := func(resource string, verbs ...string) rbacv1.PolicyRule {
		group := ""
		if resource == "roles" || resource == "rolebindings" {
			group = rbacv1.GroupName
		}
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	binding := func(name, role string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role}}
	}
	put(h, rbacAt("Role", ""),
		role("ann", may("roles", "create", "update"), may("rolebindings", "create"), may("configmaps", "get")))
	put(h, rbacAt("Role", ""), role("secrets", may("secrets", "get")))
	put(h, rbacAt("RoleBinding", ""), binding("ann", "ann"))

	ann := request.WithUser(context.Background(), &user.DefaultInfo{Name: "ann"})
	_, err := h.Create(ann, rbacAt("Role", ""), role("more", may("secrets", "get")), metav1.CreateOptions{})
	requireStatus(t, err, 403, `user "ann"`, `is attempting to grant RBAC permissions not currently held`)
	_, err = h.Create(ann, rbacAt("Role", ""), role("less", may("configmaps", "get")), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = h.Update(ann, rbacAt("Role", "less"), role("less", may("configmaps", "get", "delete")),
		metav1.UpdateOptions{})
	requireStatus(t, err, 403, "not currently held")
	_, err = h.Create(ann, rbacAt("RoleBinding", ""), binding("more", "secrets"), metav1.CreateOptions{})
	requireStatus(t, err, 403, "not currently held")
	_, err = h.Create(ann, rbacAt("RoleBinding", ""), binding("less", "less"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = h.Create(ann, rbacAt("RoleBinding", ""), binding("none", "none"), metav1.CreateOptions{})
	requireStatus(t, err, 404, `"none" not found`)

	// An update that creates needs the permission to create.
	lease := at(leaseKind, "work", "l")
	_, err = h.Update(ann, lease, newLease("l"), metav1.UpdateOptions{})
	requireStatus(t, err, 403,
		`User "ann" cannot create resource "leases" in API group "coordination.k8s.io" in the namespace "work"`)
}

func TestTokenRequest(t *testing.T) {
	h := build(t)
	target := sub(v1("ServiceAccount", "robot"), "token")
	_, err := h.Create(h.ctx, target, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	requireStatus(t, err, 503, "no key")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	h.cfg.Tokens, err = NewTokens("https://issuer", key)
	require.NoError(t, err)
	h.cfg.Audiences = []string{"https://issuer"}

	_, err = h.Create(h.ctx, target, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	requireStatus(t, err, 404, `serviceaccounts "robot" not found`)
	sa := put(h, v1("ServiceAccount", ""), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "work"},
	})
	p := smallPod("p")
	p.Spec.ServiceAccountName = "robot"
	p = put(h, v1("Pod", ""), p)
	put(h, v1("Pod", ""), smallPod("other"))

	res, err := h.Create(h.ctx, target, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	req := answer[*authenticationv1.TokenRequest](t, res, err)
	require.NotEmpty(t, req.Status.Token)
	require.Equal(t, []string{"https://issuer"}, req.Spec.Audiences)
	require.EqualValues(t, 3600, *req.Spec.ExpirationSeconds)
	require.Equal(t, sa.UID, req.UID)

	bound := func(name string, uid types.UID) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: uid}}}
	}
	_, err = h.Create(h.ctx, target, bound("p", p.UID), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = h.Create(h.ctx, target, bound("p", "other"), metav1.CreateOptions{})
	requireStatus(t, err, 409, "the UID in the bound object reference (other) does not match")
	_, err = h.Create(h.ctx, target, bound("none", ""), metav1.CreateOptions{})
	requireStatus(t, err, 404, `pods "none" not found`)
	_, err = h.Create(h.ctx, target, bound("other", ""), metav1.CreateOptions{})
	requireStatus(t, err, 400, "different serviceaccount name")
	_, err = h.Create(h.ctx, target,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr(int64(5))}},
		metav1.CreateOptions{})
	requireStatus(t, err, 422, "may not specify a duration less than 10 minutes")
}
