package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/test/host"
)

// TestCertificateOfAUser creates a key and a signing request, has it approved, and uses the certificate before and
// during the replacement of the authority.
func TestCertificateOfAUser(t *testing.T) {
	h := host.New(t)
	h.Start()
	issue := func(name, user string, groups ...string) (cert, key string, out string, err error) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		der, err := x509.MarshalECPrivateKey(private)
		require.NoError(t, err)
		key = filepath.Join(h.Home, name+".key")
		require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
		der, err = x509.CreateCertificateRequest(rand.Reader,
			&x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}, private)
		require.NoError(t, err)
		file := filepath.Join(h.Home, name+".yaml")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: %s}
spec:
  request: %s
  signerName: kubernetes.io/kube-apiserver-client
  expirationSeconds: 3600
  usages: [client auth]
`, name,
			base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))), 0o600))
		if out, err = h.Try("ctl", "create", "-f", file); err != nil {
			return "", "", out, err
		}
		require.Contains(t, h.Ctl("get csr "+name), "Pending")
		h.Ctl("certificate approve " + name)
		h.Ctl("wait csr/" + name + " --for=jsonpath={.status.certificate} --timeout=120s")
		require.Contains(t, h.Ctl("get csr "+name), "Approved,Issued")
		text, err := base64.StdEncoding.DecodeString(h.Ctl("get csr " + name + " -o jsonpath={.status.certificate}"))
		require.NoError(t, err)
		block, _ := pem.Decode(text)
		parsed, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(time.Hour), parsed.NotAfter, time.Minute)
		cert = filepath.Join(h.Home, name+".crt")
		require.NoError(t, os.WriteFile(cert, text, 0o600))
		return cert, key, out, nil
	}
	ca := filepath.Join(h.Home, "ca.crt")
	require.NoError(t, os.WriteFile(ca, []byte(h.Ctl("get cm kube-root-ca.crt -o jsonpath={.data.ca\\.crt}")), 0o600))
	get := func(cert, key, path string) string {
		out, err := h.Command(t.Context(), "curl", "-sS", "--max-time", "30", "--cacert", ca, "--cert", cert, "--key", key,
			"https://127.0.0.1:6443"+path).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	cert, key, _, err := issue("jane", "jane", "dev")
	require.NoError(t, err)
	require.Contains(t, get(cert, key, "/api/v1/namespaces/default/pods"), `pods is forbidden: User \"jane\" cannot list`)
	h.Ctl("create rolebinding jane --clusterrole=view --group=dev")
	require.Contains(t, get(cert, key, "/api/v1/namespaces/default/pods"), `"PodList"`)

	_, _, out, err := issue("root", "root", "system:masters")
	require.Error(t, err)
	require.Contains(t, out, "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed")

	// A node's certificate is rejected without its machine's key.
	node := strings.TrimPrefix(strings.TrimSpace(h.Ctl("get nodes -o name")), "node/")
	cert, key, _, err = issue("node", "system:node:"+node, "system:nodes")
	require.NoError(t, err)
	require.Contains(t, get(cert, key, "/api/v1/nodes/"+node), "Unauthorized")

	h.Run("certs", "rotate", "--ca")
	cert, key, _, err = issue("joe", "joe", "dev")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ca, []byte(h.Ctl("get cm kube-root-ca.crt -o jsonpath={.data.ca\\.crt}")), 0o600))
	require.Contains(t, get(cert, key, "/api/v1/namespaces/default/pods"), `"PodList"`)
	h.Run("certs", "rotate", "--ca", "--finish", "--force")
	require.NoError(t, os.WriteFile(ca, []byte(h.Ctl("get cm kube-root-ca.crt -o jsonpath={.data.ca\\.crt}")), 0o600))
	require.Contains(t, get(cert, key, "/api/v1/namespaces/default/pods"), `"PodList"`)
}

// TestRuntimeClassWithoutARuntime checks that a pod whose class names a runtime that the node lacks waits with an
// event, and that a pod with the node's runtime runs.
func TestRuntimeClassWithoutARuntime(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(`
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: plain}, handler: runc, overhead: {podFixed: {cpu: 10m}}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: other}, handler: kata}
---
{apiVersion: v1, kind: Pod, metadata: {name: plain}, spec: {runtimeClassName: plain, containers: [{name: c, image: "busybox:1.36", command: [sleep, "3600"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: other}, spec: {runtimeClassName: other, containers: [{name: c, image: "busybox:1.36", command: [sleep, "3600"]}]}}
`)
	h.Ctl("wait pod/plain --for=condition=Ready --timeout=120s")
	require.Equal(t, "10m", h.Ctl("get pod plain -o jsonpath={.spec.overhead.cpu}"))
	require.Eventually(t, func() bool {
		return strings.Contains(h.Ctl("get events --field-selector reason=FailedCreatePodSandBox"),
			`no runtime for "kata" is configured`)
	}, host.Patience, 100*time.Millisecond)
	require.Equal(t, "Pending", h.Ctl("get pod other -o jsonpath={.status.phase}"))
	require.Equal(t, " runc", h.Ctl("get nodes -o jsonpath={.items[0].status.runtimeHandlers[*].name}"))
	require.Contains(t,
		h.Fails("ctl", "run", "none", "--image=busybox:1.36", `--overrides={"spec":{"runtimeClassName":"none"}}`),
		`RuntimeClass "none" not found`)
}

// TestPodWithTrustAndCertificate mounts a ClusterTrustBundle and a certificate that the test signs. The pod keeps
// running while the server and its agent are killed. Then it gets a new certificate with one new request.
func TestPodWithTrustAndCertificate(t *testing.T) {
	h := host.New(t)
	h.Start()
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	sign := func(template *x509.Certificate, public any) string {
		der, err := x509.CreateCertificate(rand.Reader, template, &x509.Certificate{Subject: pkix.Name{CommonName: "e2e"}},
			public, authority)
		require.NoError(t, err)
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	root := func(serial int64) string {
		return sign(&x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "e2e"}, IsCA: true, BasicConstraintsValid: true,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		}, authority.Public())
	}
	trust := func(anchors string) {
		text, err := json.Marshal(map[string]any{"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
			"metadata": map[string]string{"name": "anchors"}, "spec": map[string]string{"trustBundle": anchors}})
		require.NoError(t, err)
		h.Apply(string(text))
	}
	first := root(1)
	trust(first)
	h.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: c, image: "busybox:1.36", command: [sleep, "3600"], volumeMounts: [{name: v, mountPath: /v}]}
  volumes:
  - name: v
    projected:
      sources:
      - clusterTrustBundle: {name: anchors, path: anchors.pem}
      - podCertificate: {signerName: example.org/e2e, keyType: ED25519, credentialBundlePath: bundle.pem}
`)
	// issue answers the only pending request and returns the certificate.
	issue := func(serial int64) string {
		var r certificatesv1.PodCertificateRequest
		require.Eventually(t, func() bool {
			var list certificatesv1.PodCertificateRequestList
			require.NoError(t, json.Unmarshal([]byte(h.Ctl("get podcertificaterequests -o json")), &list))
			open := slices.DeleteFunc(list.Items, func(r certificatesv1.PodCertificateRequest) bool {
				return len(r.Status.Conditions) > 0
			})
			require.LessOrEqual(t, len(open), 1)
			if len(open) == 1 {
				r = open[0]
			}
			return len(open) == 1
		}, host.Patience, 200*time.Millisecond)
		proof, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
		require.NoError(t, err)
		begin := time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
		cert := sign(&x509.Certificate{
			SerialNumber: big.NewInt(serial),
			NotBefore:    begin,
			NotAfter:     begin.Add(4 * time.Hour),
		}, proof.PublicKey)
		status, err := json.Marshal(map[string]any{"status": certificatesv1.PodCertificateRequestStatus{
			Conditions: []metav1.Condition{
				{Type: "Issued", Status: "True", Reason: "Issued", LastTransitionTime: metav1.Now()},
			},
			CertificateChain: cert, NotBefore: &metav1.Time{Time: begin},
			BeginRefreshAt: &metav1.Time{Time: begin.Add(2 * time.Hour)},
			NotAfter:       &metav1.Time{Time: begin.Add(4 * time.Hour)}}})
		require.NoError(t, err)
		h.Run("ctl", "patch", "podcertificaterequest", r.Name, "--subresource=status", "--type=merge", "-p", string(status))
		return cert
	}
	file := func(name, has string) func() bool {
		return func() bool {
			out, err := h.Try("ctl", "exec", "p", "--", "cat", "/v/"+name)
			return err == nil && strings.Contains(out, has)
		}
	}
	cert := issue(2)
	h.Ctl("wait pod/p --for=condition=Ready --timeout=120s")
	require.True(t, file("anchors.pem", first)())
	require.True(t, file("bundle.pem", cert)())
	require.True(t, file("bundle.pem", "-----BEGIN PRIVATE KEY-----")())
	second := root(3)
	trust(first + second)
	require.Eventually(t, file("anchors.pem", second), host.Patience, 100*time.Millisecond)

	container := h.Ctl("get pod p -o jsonpath={.status.containerStatuses[0].containerID}")
	h.Kill()
	h.Run("start")
	cert = issue(4)
	require.Eventually(t, file("bundle.pem", cert), host.Patience, 100*time.Millisecond)
	require.Equal(t, container, h.Ctl("get pod p -o jsonpath={.status.containerStatuses[0].containerID}"))
}
