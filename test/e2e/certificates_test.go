package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestCertificateOfAUser makes a key and a signing request, has it approved, and uses the certificate, before and during the replacement
// of the authority.
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
		der, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}, private)
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
`, name, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))), 0o600))
		if out, err = h.Try("ctl", "create", "-f", file); err != nil {
			return "", "", out, err
		}
		require.Contains(t, h.Ctl("get csr "+name), "Pending")
		h.Ctl("certificate approve " + name)
		h.Ctl("wait csr/" + name + " --for=jsonpath={.status.certificate} --timeout=30s")
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
		out, err := h.Command(t.Context(), "curl", "-sS", "--max-time", "30", "--cacert", ca, "--cert", cert, "--key", key, "https://127.0.0.1:6443"+path).CombinedOutput()
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

	// A certificate of a node is no use without its machine's key.
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

// TestRuntimeClassWithoutARuntime: a pod whose class names a runtime that the node lacks waits with an event, one with the node's runs.
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
	h.Ctl("wait pod/plain --for=condition=Ready --timeout=30s")
	require.Equal(t, "10m", h.Ctl("get pod plain -o jsonpath={.spec.overhead.cpu}"))
	require.Eventually(t, func() bool {
		return strings.Contains(h.Ctl("get events --field-selector reason=FailedCreatePodSandBox"), `no runtime for "kata" is configured`)
	}, host.Patience, 100*time.Millisecond)
	require.Equal(t, "Pending", h.Ctl("get pod other -o jsonpath={.status.phase}"))
	require.Equal(t, " runc", h.Ctl("get nodes -o jsonpath={.items[0].status.runtimeHandlers[*].name}"))
	require.Contains(t, h.Fails("ctl", "run", "none", "--image=busybox:1.36", `--overrides={"spec":{"runtimeClassName":"none"}}`), `RuntimeClass "none" not found`)
}
