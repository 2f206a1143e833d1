package controllers_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/control/controllers/certificates"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestCertificateSigningRequests runs over HTTP with the rights of upstream's role.
func TestCertificateSigningRequests(t *testing.T) {
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	sign := func(r *x509.CertificateRequest, usage x509.KeyUsage, extended []x509.ExtKeyUsage,
		life time.Duration) ([]byte, error) {
		return keys.Client.SignRequest(pki.Request{CertificateRequest: r, Usage: usage, Extended: extended, Life: life},
			time.Now())
	}
	c := start(t, controlplane.Options{Log: slog.LevelWarn, HTTP: true, Signers: map[string]certificates.Signer{
		certificatesv1.KubeAPIServerClientSignerName: sign, certificatesv1.KubeAPIServerClientKubeletSignerName: sign}})
	request := func(name, signer, common string, groups ...string) *certificatesv1.CertificateSigningRequest {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		der, err := x509.CreateCertificateRequest(rand.Reader,
			&x509.CertificateRequest{Subject: pkix.Name{CommonName: common, Organization: groups}}, key)
		require.NoError(t, err)
		return &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}},
		}
	}
	issued := func(r *certificatesv1.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 }

	jane := request("jane", certificatesv1.KubeAPIServerClientSignerName, "jane", "dev")
	jane.Spec.Username = "someone else"
	c.Make(jane)
	require.Equal(t, "admin", jane.Spec.Username)
	approved := certificatesv1.CertificateSigningRequestCondition{
		Type:   certificatesv1.CertificateApproved,
		Status: corev1.ConditionTrue,
		Reason: "Reviewed",
	}
	jane.Status.Conditions = append(jane.Status.Conditions, approved)
	nobody := c.Engine.Clients.For(&user.DefaultInfo{Name: "nobody", Groups: []string{user.AllAuthenticated}})
	require.True(t, apierrors.IsForbidden(nobody.SubResource("approval").Update(c.Ctx, jane.DeepCopy())),
		"admission asks who may approve")
	require.NoError(t, c.SubResource("approval").Update(c.Ctx, jane))
	controlplane.Until(c, &certificatesv1.CertificateSigningRequestList{}, "", "jane", issued)

	root := request("root", certificatesv1.KubeAPIServerClientSignerName, "root", "system:masters")
	err = c.Create(c.Ctx, root)
	require.ErrorContains(t, err,
		"use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed")

	// A node's request is approved only if its author has a permission that no role grants by default. There is
	// one worker, so once the second request is signed, the first one has been reconciled.
	node := request("node", certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:a", "system:nodes")
	boot := c.Engine.Clients.For(&user.DefaultInfo{
		Name: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", user.AllAuthenticated},
	})
	grant := func(role string) {
		c.Make(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:bootstrappers"}}})
	}
	require.NoError(t, boot.Create(c.Ctx, node))
	second := request("second", certificatesv1.KubeAPIServerClientSignerName, "second")
	c.Make(second)
	second.Status.Conditions = append(second.Status.Conditions, approved)
	require.NoError(t, c.SubResource("approval").Update(c.Ctx, second))
	controlplane.Until(c, &certificatesv1.CertificateSigningRequestList{}, "", "second", issued)
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(node), node))
	require.Empty(t, node.Status.Conditions)
	grant("system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	controlplane.Until(c, &certificatesv1.CertificateSigningRequestList{}, "", "node", issued)
}

// TestTrustBundleOfTheAPI runs over HTTP with the rights of upstream's role.
func TestTrustBundleOfTheAPI(t *testing.T) {
	authority := func() []byte {
		keys, err := pki.Load(t.TempDir())
		require.NoError(t, err)
		return keys.Server.Bundle()
	}
	first, second := authority(), authority()
	c := start(t, controlplane.Options{Log: slog.LevelWarn, HTTP: true, RootCA: first})
	only := func(pem []byte) {
		t.Helper()
		require.Eventually(t, func() bool {
			var list certificatesv1.ClusterTrustBundleList
			require.NoError(t, c.List(c.Ctx, &list))
			return len(list.Items) == 1 && list.Items[0].Spec.TrustBundle == string(pem) &&
				list.Items[0].Spec.SignerName == "kubernetes.io/kube-apiserver-serving"
		}, controlplane.Patience, 5*time.Millisecond)
	}
	only(first)
	c.RootCA.Set(second)
	only(second)
	require.NoError(t, c.DeleteAllOf(c.Ctx, &certificatesv1.ClusterTrustBundle{}))
	only(second)
	nobody := c.Engine.Clients.For(&user.DefaultInfo{Name: "nobody", Groups: []string{user.AllAuthenticated}})
	err := nobody.Create(c.Ctx, &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "example.org:s:1"},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.org/s", TrustBundle: string(first)}})
	require.ErrorContains(t, err, `user not permitted to attest for signerName "example.org/s"`)
}

// TestPodCertificatesAreSignedByTheSigner: permission to write the status is not permission to sign.
func TestPodCertificatesAreSignedByTheSigner(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelWarn, HTTP: true})
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	proof, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	r := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"}, Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.org/s", PodName: "p", PodUID: "u", ServiceAccountName: "default", ServiceAccountUID: "u",
			NodeName: "n", NodeUID: "u", StubPKCS10Request: proof},
	}
	c.Make(r)
	require.EqualValues(t, 86400, *r.Spec.MaxExpirationSeconds)
	r.Status.Conditions = []metav1.Condition{
		{
			Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue, Reason: "No",
			Message: "no", LastTransitionTime: metav1.Now(),
		},
	}
	nobody := c.Engine.Clients.For(&user.DefaultInfo{Name: "nobody", Groups: []string{user.AllAuthenticated}})
	require.ErrorContains(t, nobody.Status().Update(c.Ctx, r.DeepCopy()),
		`User "nobody" is not permitted to "sign" for signer "example.org/s"`)

	// A node may request certificates for its own pods only.
	node := c.Engine.Clients.For(&user.DefaultInfo{
		Name: "system:node:n", Groups: []string{"system:nodes", user.AllAuthenticated},
	})
	theirs := r.DeepCopy()
	theirs.ResourceVersion, theirs.Name, theirs.Spec.NodeName = "", "theirs", "other"
	require.ErrorContains(t, node.Create(c.Ctx, theirs),
		`PodCertificateRequest.Spec.NodeName="other", which is not the requesting node "n"`)

	require.NoError(t, c.Status().Update(c.Ctx, r))
	require.Len(t, r.Status.Conditions, 1)
}
