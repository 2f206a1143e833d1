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

// ann may write roles and bindings, and read config maps, and no more.
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
	put(h, rbacAt("Role", ""), role("ann", may("roles", "create", "update"), may("rolebindings", "create"), may("configmaps", "get")))
	put(h, rbacAt("Role", ""), role("secrets", may("secrets", "get")))
	put(h, rbacAt("RoleBinding", ""), binding("ann", "ann"))

	ann := request.WithUser(context.Background(), &user.DefaultInfo{Name: "ann"})
	_, err := h.Create(ann, rbacAt("Role", ""), role("more", may("secrets", "get")), metav1.CreateOptions{})
	requireStatus(t, err, 403, `user "ann"`, `is attempting to grant RBAC permissions not currently held`)
	_, err = h.Create(ann, rbacAt("Role", ""), role("less", may("configmaps", "get")), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = h.Update(ann, rbacAt("Role", "less"), role("less", may("configmaps", "get", "delete")), metav1.UpdateOptions{})
	requireStatus(t, err, 403, "not currently held")
	_, err = h.Create(ann, rbacAt("RoleBinding", ""), binding("more", "secrets"), metav1.CreateOptions{})
	requireStatus(t, err, 403, "not currently held")
	_, err = h.Create(ann, rbacAt("RoleBinding", ""), binding("less", "less"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = h.Create(ann, rbacAt("RoleBinding", ""), binding("none", "none"), metav1.CreateOptions{})
	requireStatus(t, err, 404, `"none" not found`)

	// An update that creates needs the right to create.
	lease := at(leaseKind, "work", "l")
	_, err = h.Update(ann, lease, newLease("l"), metav1.UpdateOptions{})
	requireStatus(t, err, 403, `User "ann" cannot create resource "leases" in API group "coordination.k8s.io" in the namespace "work"`)
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
	sa := put(h, v1("ServiceAccount", ""), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "work"}})
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
	_, err = h.Create(h.ctx, target, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr(int64(5))}}, metav1.CreateOptions{})
	requireStatus(t, err, 422, "may not specify a duration less than 10 minutes")
}

func TestUpstreamPlugins(t *testing.T) {
	h := &house{benchRegistry(t), t, asUser(context.Background())}
	p := put(h, v1("Pod", ""), smallPod("p"))
	require.Equal(t, "default", p.Spec.ServiceAccountName)
	require.NotNil(t, p.Spec.Volumes[0].Projected, "its token is mounted")
	require.EqualValues(t, 0, *p.Spec.Priority)
	require.Equal(t, "node.kubernetes.io/not-ready", p.Spec.Tolerations[0].Key)

	n := put(h, v1("Node", ""), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	require.Equal(t, "node.kubernetes.io/not-ready", n.Spec.Taints[0].Key)

	node := request.WithUser(h.ctx, &user.DefaultInfo{Name: "system:node:m", Groups: []string{"system:nodes"}})
	_, err := h.Delete(node, v1("Node", "n"), metav1.DeleteOptions{})
	requireStatus(t, err, 403, `node "m" is not allowed to modify node "n"`)
	_, err = h.Create(node, v1("Pod", ""), smallPod("q"), metav1.CreateOptions{})
	requireStatus(t, err, 403, "can only create mirror pods")

	// A node does not give itself a range of addresses, neither at first nor later.
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: corev1.NodeSpec{PodCIDR: "10.42.7.0/24"}}
	_, err = h.Create(node, v1("Node", ""), own, metav1.CreateOptions{})
	requireStatus(t, err, 403, "a node may not set its own podCIDR")
	own.Spec.PodCIDR = ""
	res, err := h.Create(node, v1("Node", ""), own, metav1.CreateOptions{})
	own = copied(answer[*corev1.Node](t, res, err))
	own.Spec.PodCIDR, own.Spec.PodCIDRs = "10.42.7.0/24", []string{"10.42.7.0/24"}
	_, err = h.Update(node, v1("Node", "m"), own, metav1.UpdateOptions{})
	requireStatus(t, err, 403, "a node may not set its own podCIDR")
	res, err = h.Update(h.ctx, v1("Node", "m"), own, metav1.UpdateOptions{})
	own = copied(answer[*corev1.Node](t, res, err))
	require.Equal(t, "10.42.7.0/24", own.Spec.PodCIDR)
	own.Labels = map[string]string{"example.com/a": "b"}
	_, err = h.Update(node, v1("Node", "m"), own, metav1.UpdateOptions{})
	require.NoError(t, err, "and goes on with what it was given")

	q := smallPod("q")
	q.Spec.ServiceAccountName = "ghost"
	_, err = h.Create(h.ctx, v1("Pod", ""), q, metav1.CreateOptions{})
	requireStatus(t, err, 403, `error looking up service account work/ghost: serviceaccount "ghost" not found`)
	q = smallPod("q")
	q.Spec.PriorityClassName = "urgent"
	_, err = h.Create(h.ctx, v1("Pod", ""), q, metav1.CreateOptions{})
	requireStatus(t, err, 403, "no PriorityClass with name urgent was found")
}
