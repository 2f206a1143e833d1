package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/coracle-dev/coracle/pkg/api/access/accesstest"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/test/host"
)

func caller(t *testing.T, h *host.Host) func(token, method, path, body string) (int, string) {
	t.Helper()
	config := h.REST()
	config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(config.CAData))
	c := &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool}},
	}
	return func(token, method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := c.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		data, err := bounded.All(resp.Body, 4<<20)
		require.NoError(t, err)
		return resp.StatusCode, string(data)
	}
}

// TestOpenIDProvider checks that the server authenticates a provider's users by its configuration file, and follows
// the file.
func TestOpenIDProvider(t *testing.T) {
	h := host.New(t)
	l, err := h.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := accesstest.StartOn(t, l)
	file := filepath.Join(h.Home, "authentication.yaml")
	write := func(audience string) {
		require.NoError(t, os.WriteFile(file+".new", fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /version}]}
jwt:
- issuer:
    url: %s
    audiences: [%s]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: "oidc:"}
    groups: {claim: teams, prefix: "team:"}
    uid: {expression: claims.sub + "-1"}
  userValidationRules:
  - {expression: "!user.username.startsWith('oidc:system')", message: no system users}
`, p.URL, audience, strings.ReplaceAll(strings.TrimSpace(p.CA()), "\n", "\n      ")), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	write("coracle")
	h.Run("start", "--authentication-config", file)
	h.Ctl("create clusterrolebinding blue --clusterrole=view --group=team:blue")
	call := caller(t, h)
	token := func(sub string) string {
		return p.Token(t, map[string]any{
			"aud":   "coracle",
			"sub":   sub,
			"teams": []string{"blue"},
			"exp":   time.Now().Add(time.Hour).Unix(),
		})
	}
	jane := token("jane")
	code, body := call(jane, "GET", "/api/v1/namespaces/default/pods", "")
	require.Equal(t, 200, code, body)
	code, body = call(jane, "GET", "/api/v1/nodes", "")
	require.Equal(t, 403, code, body)
	require.Contains(t, body, `User \"oidc:jane\" cannot list resource \"nodes\"`)
	code, body = call(jane, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	require.Equal(t, 201, code, body)
	require.Contains(t, body, `"groups":["team:blue","system:authenticated"]`)
	code, _ = call(token("system"), "GET", "/api/v1/namespaces/default/pods", "")
	require.Equal(t, 401, code)

	code, body = call("", "GET", "/version", "")
	require.Equal(t, 200, code, body)
	code, _ = call("", "GET", "/api", "")
	require.Equal(t, 401, code, "anonymous access to this path is not configured")
	code, _ = call("nonsense", "GET", "/version", "")
	require.Equal(t, 401, code, "a request with an invalid token is not anonymous")

	write("another")
	require.Eventually(t, func() bool {
		code, _ = call(token("jane"), "GET", "/api/v1/namespaces/default/pods", "")
		return code == 401
	}, host.Patience, 10*time.Millisecond)

	require.NoError(t, os.WriteFile(file, []byte("kind: nonsense"), 0o600))
	h.Run("stop")
	require.Contains(t, h.Fails("start", "--authentication-config", file), "authentication-config "+file)
	require.Contains(t, h.Fails("start", "--authentication-config", "relative"), "must be an absolute path")
	require.Contains(t, h.Fails("start", "--oidc-client-id", "x"),
		"oidc-issuer-url and oidc-client-id must be specified together")
}

// TestBootstrapTokens covers the requests of kubeadm join: anyone may read cluster-info, which is signed with the
// token, and the token's holder gets a node certificate.
func TestBootstrapTokens(t *testing.T) {
	h := host.New(t)
	h.Run("start", "--anonymous-auth")
	call := caller(t, h)
	const id, secret = "abcdef", "0123456789abcdef"
	manifest := func(expires time.Time) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-%s, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: %s
  token-secret: %s
  expiration: %q
  usage-bootstrap-authentication: "true"
  usage-bootstrap-signing: "true"
  auth-extra-groups: system:bootstrappers:kubeadm:default-node-token
`, id, id, secret, expires.UTC().Format(time.RFC3339))
	}
	h.Apply(manifest(time.Now().Add(time.Hour)))
	h.Apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-info, namespace: kube-public}
data: {kubeconfig: "a kubeconfig"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: cluster-info, namespace: kube-public}
rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [cluster-info], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: cluster-info, namespace: kube-public}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: cluster-info}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: system:anonymous}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bootstrap}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-bootstrapper}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:bootstrappers:kubeadm:default-node-token}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: approve}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:certificates.k8s.io:certificatesigningrequests:nodeclient}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:bootstrappers:kubeadm:default-node-token}]
`)
	h.Ctl(`-n kube-public wait cm/cluster-info --for=jsonpath={.data.jws-kubeconfig-` + id + `} --timeout=120s`)
	code, body := call("", "GET", "/api/v1/namespaces/kube-public/configmaps/cluster-info", "")
	require.Equal(t, 200, code, body)
	var info struct{ Data map[string]string }
	require.NoError(t, json.Unmarshal([]byte(body), &info))
	require.True(t, jws.DetachedTokenIsValid(info.Data["jws-kubeconfig-"+id], info.Data["kubeconfig"], id, secret))
	code, body = call("", "GET", "/api/v1/namespaces/kube-public/configmaps", "")
	require.Equal(t, 403, code, body)
	require.Contains(t, body, `User \"system:anonymous\" cannot list`)

	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:new", Organization: []string{"system:nodes"}}},
		private)
	require.NoError(t, err)
	request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	code, body = call(id+"."+secret, "POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"new"},
		"spec":{"request":"`+
			request+
			`","signerName":"kubernetes.io/kube-apiserver-client-kubelet","usages":["digital signature","client auth"]}}`)
	require.Equal(t, 201, code, body)
	require.Contains(t, body, `"username":"system:bootstrap:`+id+`"`)
	h.Ctl("wait csr/new --for=jsonpath={.status.certificate} --timeout=120s")
	code, _ = call(id+".fedcba9876543210", "GET", "/api", "")
	require.Equal(t, 401, code)

	h.Apply(manifest(time.Now().Add(-time.Second)))
	h.Ctl("-n kube-system wait secret/bootstrap-token-" + id + " --for=delete --timeout=120s")
	require.Eventually(t, func() bool {
		_, body := call("", "GET", "/api/v1/namespaces/kube-public/configmaps/cluster-info", "")
		return !strings.Contains(body, "jws-kubeconfig-")
	}, host.Patience, 10*time.Millisecond)
	code, _ = call(id+"."+secret, "GET", "/api", "")
	require.Equal(t, 401, code)
}

// TestPolicyTypes checks that a policy's status reports type errors in its expressions in upstream's words.
func TestPolicyTypes(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	h.Apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: typed}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments, statefulsets]}]}
  validations:
  - expression: object.spec.replicas > 1
  - expression: object.spec.replica > 1
  - {expression: object.spec.replicas > 2, messageExpression: string(object.metadata.nam)}
`)
	h.Ctl("wait validatingadmissionpolicy/typed --for=jsonpath={.status.observedGeneration}=1 --timeout=120s")
	out := h.Ctl("get validatingadmissionpolicy typed -o jsonpath={.status.typeChecking}")
	require.NotContains(t, out, "spec.validations[0]")
	require.Contains(t, out, `"fieldRef":"spec.validations[1].expression"`)
	require.Contains(t, out, `apps/v1, Kind=Deployment: ERROR: \u003cinput\u003e:1:12: undefined field 'replica'`)
	require.Contains(t, out, `apps/v1, Kind=StatefulSet: ERROR`)
	require.Contains(t, out, `"fieldRef":"spec.validations[2].messageExpression"`)
}
