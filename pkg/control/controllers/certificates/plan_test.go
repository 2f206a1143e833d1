package certificates

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var clientUsages = []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}

func signingRequest(t *testing.T, template x509.CertificateRequest) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func subject(name string, groups ...string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}
}

func certificate(t *testing.T, until time.Time) []byte {
	t.Helper()
	return certificateFrom(t, now.Add(-time.Hour), until)
}

func certificateFrom(t require.TestingT, from, until time.Time) []byte {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func condition(kind certificatesv1.RequestConditionType,
	ago time.Duration) []certificatesv1.CertificateSigningRequestCondition {
	return []certificatesv1.CertificateSigningRequestCondition{
		{Type: kind, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(now.Add(-ago))},
	}
}

func TestPlan(t *testing.T) {
	node := subject("system:node:a", "system:nodes")
	serving := node
	serving.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)}
	servingUsages := []certificatesv1.KeyUsage{
		certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment,
	}
	approved := condition(certificatesv1.CertificateApproved, time.Minute)
	type spec = certificatesv1.CertificateSigningRequestSpec
	type status = certificatesv1.CertificateSigningRequestStatus
	for name, c := range map[string]struct {
		template     x509.CertificateRequest
		spec         spec
		status       status
		verb         Verb
		message      string
		subresources []string
		again        time.Duration
	}{
		"a user's request waits for a person": {
			template: subject("jane"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: clientUsages},
			again:    23 * time.Hour,
		},
		"and is signed": {
			template: subject("jane"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: clientUsages},
			status:   status{Conditions: approved}, verb: Sign, again: 24*time.Hour - time.Minute,
		},
		"not for a server": {
			template: subject("jane"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: servingUsages},
			status:   status{Conditions: approved}, verb: Fail, message: "invalid usage for client certificate: server auth",
			again: 24*time.Hour - time.Minute,
		},
		"not without a usage": {
			template: subject("jane"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: clientUsages[1:]},
			status:   status{Conditions: approved}, verb: Fail,
			message: "missing required usage for client certificate: client auth", again: 24*time.Hour - time.Minute,
		},
		"other signers decide for themselves": {
			template: subject("jane"), spec: spec{SignerName: "example.org/mine", Usages: clientUsages},
			status: status{Conditions: approved}, again: 24*time.Hour - time.Minute,
		},
		"a node's request may be approved": {
			template: node,
			spec: spec{
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages:     clientUsages,
				Username:   "bootstrap",
			},
			verb: Approve, subresources: []string{"nodeclient"}, again: 23 * time.Hour,
		},
		"its own too": {
			template: node,
			spec: spec{
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages:     clientUsages,
				Username:   "system:node:a",
			},
			verb: Approve, subresources: []string{"selfnodeclient", "nodeclient"}, again: 23 * time.Hour,
		},
		"a node with another group": {
			template: subject("system:node:a", "system:nodes", "system:masters"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: clientUsages},
			again:    23 * time.Hour,
		},
		"approved nevertheless": {
			template: subject("system:node:a", "system:nodes", "system:masters"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: clientUsages},
			status:   status{Conditions: approved}, verb: Fail, message: "subject organization is not system:nodes",
			again: 24*time.Hour - time.Minute,
		},
		"a node with a name that serves": {
			template: serving, spec: spec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: clientUsages},
			status: status{Conditions: approved}, verb: Fail, message: "IP subjectAltNames are not allowed",
			again: 24*time.Hour - time.Minute,
		},
		"serving certificates are for people to approve": {
			template: serving, spec: spec{SignerName: certificatesv1.KubeletServingSignerName, Usages: servingUsages},
			again: 23 * time.Hour,
		},
		"and are signed": {
			template: serving, spec: spec{SignerName: certificatesv1.KubeletServingSignerName, Usages: servingUsages},
			status: status{Conditions: approved}, verb: Sign, again: 24*time.Hour - time.Minute,
		},
		"serving without an address": {
			template: node, spec: spec{SignerName: certificatesv1.KubeletServingSignerName, Usages: servingUsages},
			status: status{Conditions: approved}, verb: Fail, message: "DNS or IP subjectAltName is required",
			again: 24*time.Hour - time.Minute,
		},
		"denied": {
			template: node, spec: spec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: clientUsages},
			status: status{Conditions: condition(certificatesv1.CertificateDenied, time.Minute)}, again: 59 * time.Minute,
		},
		"denied long ago": {
			template: node, spec: spec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: clientUsages},
			status: status{Conditions: condition(certificatesv1.CertificateDenied, time.Hour)}, verb: Delete,
		},
		"failed": {
			template: node, spec: spec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: clientUsages},
			status: status{Conditions: append(condition(certificatesv1.CertificateFailed, time.Minute), approved...)},
			again:  59 * time.Minute,
		},
		"failed long after it was approved": {
			template: node, spec: spec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: clientUsages},
			status: status{
				Conditions: append(condition(certificatesv1.CertificateFailed, time.Minute),
					condition(certificatesv1.CertificateApproved, 30*time.Hour)...),
			}, again: 59 * time.Minute,
		},
		"issued": {
			template: subject("jane"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: clientUsages},
			status:   status{Conditions: approved, Certificate: certificate(t, now.Add(24*time.Hour))}, again: 59 * time.Minute,
		},
		"issued and expired": {
			template: subject("jane"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: clientUsages},
			status:   status{Conditions: approved, Certificate: certificate(t, now)}, verb: Delete,
		},
		"issued long ago": {
			template: subject("jane"),
			spec:     spec{SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: clientUsages},
			status: status{
				Conditions:  condition(certificatesv1.CertificateApproved, time.Hour),
				Certificate: certificate(t, now.Add(24*time.Hour)),
			}, verb: Delete,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Request = signingRequest(t, c.template)
			r := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
				Spec:       c.spec,
				Status:     c.status,
			}
			signs := func(name string) bool { return name != "example.org/mine" }
			a := Plan(r, signs, now)
			require.Equal(t, c.verb, a.Verb)
			require.Equal(t, c.message, a.Message)
			require.Equal(t, c.again, a.Again)
			var asked []string
			for _, approval := range a.Approvals {
				asked = append(asked, approval.Subresource)
			}
			require.Equal(t, c.subresources, asked)
			none := Plan(r, func(string) bool { return false }, now)
			require.NotContains(t, []Verb{Sign, Fail}, none.Verb, "without signers")
		})
	}
}

func TestRequestsThatCannotBeParsedOnlyExpire(t *testing.T) {
	r := &certificatesv1.CertificateSigningRequest{
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: []byte("nonsense"), SignerName: certificatesv1.KubeAPIServerClientSignerName,
		},
	}
	require.Equal(t, Action{}, Plan(r, func(string) bool { return true }, now))
	r.CreationTimestamp = metav1.NewTime(now.Add(-24 * time.Hour))
	require.Equal(t, Delete, Plan(r, func(string) bool { return true }, now).Verb)
}

func TestLifeOfACertificate(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{
		0:         10 * time.Minute,
		3600:      time.Hour,
		1<<31 - 1: 365 * 24 * time.Hour,
	} {
		require.Equal(t, want,
			life(&certificatesv1.CertificateSigningRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{ExpirationSeconds: &seconds},
			}))
	}
	require.Equal(t, 365*24*time.Hour, life(&certificatesv1.CertificateSigningRequest{}))
}
