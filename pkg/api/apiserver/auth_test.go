package apiserver

import (
	"context"
	"crypto/x509"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-dev/coracle/pkg/control/controllers/roles"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

func TestWhoMayDoWhat(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	ctx := t.Context()
	master := w.clients.For(&user.DefaultInfo{Name: "x", Groups: []string{user.SystemPrivilegedGroup}})
	began := time.Now()
	require.NoError(t, roles.Ensure(ctx, master, assembled.Roles()))
	t.Logf("bootstrap roles took %v", time.Since(began))
	began = time.Now()
	before := w.cfg.Cache.Revision()
	require.NoError(t, roles.Ensure(ctx, master, assembled.Roles()))
	require.Equal(t, before, w.cfg.Cache.Revision(), "a second pass writes nothing")
	t.Logf("and again %v", time.Since(began))

	const maps = "/api/v1/namespaces/d/configmaps"
	t.Run("anonymous", func(t *testing.T) {
		c := w.anonymous()
		for path, code := range map[string]int{
			"/healthz": 200,
			"/livez":   200,
			"/readyz":  200,
			"/version": 401,
			maps:       401,
			"/metrics": 401,
			"/apis":    401,
		} {
			r := w.do(c, "GET", path, "")
			require.Equal(t, code, r.code, path)
		}
		require.Equal(t, metav1.StatusReasonUnauthorized, w.do(c, "GET", maps, "").status(t).Reason)
		require.Equal(t, 401, w.do(c, "GET", maps, "", "Authorization", "Bearer nonsense").code)
	})
	t.Run("a stranger's certificate", func(t *testing.T) {
		other := &world{t: t, ca: w.ca, url: w.url}
		stranger := newAuthority(t)
		tr := w.as("x").Transport.(*http.Transport)
		tr.TLSClientConfig.Certificates[0] = stranger.issue(t, "admin", "system:masters")
		require.Equal(t, 401, other.do(&http.Client{Transport: tr}, "GET", maps, "").code)
	})
	t.Run("roles", func(t *testing.T) {
		ann := w.as("ann")
		r := w.do(ann, "GET", maps, "")
		require.Equal(t, 403, r.code)
		require.Equal(t,
			`configmaps is forbidden: User "ann" cannot list resource "configmaps" in API group "" in the namespace "d"`,
			r.status(t).Message)
		require.Equal(t, 200, w.do(ann, "GET", "/version", "").code)
		cs := w.clientset(w.http)
		_, err := cs.RbacV1().RoleBindings("d").Create(t.Context(),
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ann"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
				Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, 200, w.do(ann, "GET", maps, "").code)
		require.Equal(t, 403, w.do(ann, "POST", maps, someMap).code)
		require.Equal(t, 403, w.do(ann, "GET", "/api/v1/namespaces/d/secrets", "").code)
	})
	t.Run("impersonation", func(t *testing.T) {
		r := w.do(w.http, "GET", maps, "", "Impersonate-User", "bob")
		require.Equal(t, 403, r.code)
		require.Contains(t, r.status(t).Message, `User "bob"`)
		r = w.do(w.as("ann"), "GET", maps, "", "Impersonate-User", "bob")
		require.Equal(t, 403, r.code)
		require.Contains(t, r.status(t).Message, "impersonate")
	})
	t.Run("reviews", func(t *testing.T) {
		cs := w.clientset(w.as("ann"))
		ssar := func(verb, resource string) bool {
			res, err := cs.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(),
				&authorizationv1.SelfSubjectAccessReview{
					Spec: authorizationv1.SelfSubjectAccessReviewSpec{
						ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "d", Verb: verb, Resource: resource},
					}}, metav1.CreateOptions{})
			require.NoError(t, err)
			return res.Status.Allowed
		}
		require.True(t, ssar("list", "pods"))
		require.False(t, ssar("create", "pods"))
		me, err := cs.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, "ann", me.Status.UserInfo.Username)
		rules, err := cs.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
			&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "d"}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, rules.Status.ResourceRules)
		_, err = cs.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "x"}},
			metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = w.clientset(w.http).AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
			&authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
	})
	t.Run("service account tokens end with their account", func(t *testing.T) {
		admin := w.clientset(w.http)
		_, err := admin.CoreV1().ServiceAccounts("d").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		tr, err := admin.CoreV1().ServiceAccounts("d").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
		require.NoError(t, err)
		bearer := "Bearer " + tr.Status.Token
		r := w.do(w.anonymous(), "GET", maps, "", "Authorization", bearer)
		require.Equal(t, 403, r.code)
		require.Contains(t, r.status(t).Message, `"system:serviceaccount:d:robot"`)
		review, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: tr.Status.Token}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		require.True(t, review.Status.Authenticated, "%+v", review.Status)
		require.Contains(t, review.Status.User.Groups, "system:authenticated")
		require.NoError(t, admin.CoreV1().ServiceAccounts("d").Delete(t.Context(), "robot", metav1.DeleteOptions{}))
		require.Equal(t, 401, w.do(w.anonymous(), "GET", maps, "", "Authorization", bearer).code)
	})
	t.Run("tokens that are kept in secrets end with them", func(t *testing.T) {
		admin := w.clientset(w.http)
		account, err := admin.CoreV1().ServiceAccounts("d").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		secret := &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken,
			ObjectMeta: metav1.ObjectMeta{
				Namespace:   "d",
				Name:        "kept",
				Annotations: map[string]string{corev1.ServiceAccountNameKey: "kept"},
			}}
		token, err := w.sign.SignKept(t.Context(), account, secret)
		require.NoError(t, err)
		bearer := "Bearer " + token
		require.Equal(t, 401, w.do(w.anonymous(), "GET", maps, "", "Authorization", bearer).code, "no secret has it")
		secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
		_, err = admin.CoreV1().Secrets("d").Create(t.Context(), secret, metav1.CreateOptions{})
		require.NoError(t, err)
		r := w.do(w.anonymous(), "GET", maps, "", "Authorization", bearer)
		require.Equal(t, 403, r.code)
		require.Contains(t, r.status(t).Message, `"system:serviceaccount:d:kept"`)
		used, err := admin.CoreV1().Secrets("d").Get(t.Context(), "kept", metav1.GetOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, used.Labels["kubernetes.io/legacy-token-last-used"])
		require.NoError(t, admin.CoreV1().Secrets("d").Delete(t.Context(), "kept", metav1.DeleteOptions{}))
		require.Equal(t, 401, w.do(w.anonymous(), "GET", maps, "", "Authorization", bearer).code)
	})
	t.Run("nodes", func(t *testing.T) {
		node := w.as("system:node:n1", "system:nodes")
		me := w.do(node, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
		require.Contains(t, string(me.body), `"coracle.dev/addresses":["127.0.0.1"]`, "from which it connects")
		require.Equal(t, 403, w.do(node, "GET", "/api/v1/nodes", "").code, "a node sees itself only")
		require.Equal(t, 200, w.do(node, "GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1", "").code)
		require.Equal(t, 200, w.do(node, "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", "").code)
		require.Equal(t, 403, w.do(node, "GET", "/api/v1/namespaces/d/secrets/s", "").code)
		admin := w.clientset(w.http)
		_, err := admin.CoreV1().ServiceAccounts("d").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = admin.CoreV1().Secrets("d").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		p := podNamed("p")
		p.Spec.NodeName = "n1"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
			{
				Name:         "c",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
			},
		}
		storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		claim, err := admin.CoreV1().PersistentVolumeClaims("d").Create(t.Context(),
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"},
				Spec: corev1.PersistentVolumeClaimSpec{
					VolumeName:  "v",
					AccessModes: modes,
					Resources:   corev1.VolumeResourceRequirements{Requests: storage},
				}}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = admin.CoreV1().PersistentVolumes().Create(t.Context(),
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
				Capacity: storage, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: "d", Name: "c", UID: claim.UID},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = admin.CoreV1().Pods("d").Create(t.Context(), p, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return w.do(node, "GET", "/api/v1/namespaces/d/secrets/s", "").code == 200
		}, time.Minute, time.Millisecond)
		require.Equal(t, 403, w.do(w.as("system:node:n2", "system:nodes"), "GET", "/api/v1/namespaces/d/secrets/s", "").code)
		for _, path := range []string{"/api/v1/namespaces/d/persistentvolumeclaims/c", "/api/v1/persistentvolumes/v"} {
			require.Eventually(t, func() bool {
				return w.do(node, "GET", path, "").code == 200
			}, time.Minute, time.Millisecond, path)
			require.Equal(t, 403, w.do(w.as("system:node:n2", "system:nodes"), "GET", path, "").code, path)
		}
		require.NoError(t,
			admin.CoreV1().Pods("d").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		require.Eventually(t, func() bool {
			return w.do(node, "GET", "/api/v1/persistentvolumes/v", "").code == 403
		}, time.Minute, time.Millisecond)
	})
}

func TestPanicIs500(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Tokens = authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
			panic("boom")
		})
	})
	r := w.do(w.anonymous(), "GET", "/version", "", "Authorization", "Bearer x")
	require.Equal(t, 500, r.code)
	require.Equal(t, metav1.StatusReasonInternalError, r.status(t).Reason)
}

// A client certificate is trusted only while its CA is, also on an open connection.
func TestClientAuthoritiesChange(t *testing.T) {
	var present atomic.Pointer[x509.CertPool]
	w := newWorld(t, func(c *Config) {
		present.Store(c.TLS.ClientCAs)
		c.ClientCAs = present.Load
	})
	next := newAuthority(t)
	later := w.as("x")
	later.Transport.(*http.Transport).TLSClientConfig.Certificates[0] = next.issue(t, "admin", "system:masters")
	code := func(c *http.Client) int { return w.do(c, "GET", "/api/v1/namespaces", "").code }
	require.Equal(t, []int{200, 401}, []int{code(w.http), code(later)})
	both := x509.NewCertPool()
	both.AddCert(w.ca.cert)
	both.AddCert(next.cert)
	present.Store(both)
	require.Equal(t, []int{200, 200}, []int{code(w.http), code(later)})
	present.Store(next.pool)
	require.Equal(t, []int{401, 200}, []int{code(w.http), code(later)})
}
