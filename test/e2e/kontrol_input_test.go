package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

// TestKontrolInput checks that errors in Clusters and Resources are reported with a remedy, and do not affect other
// clusters.
func TestKontrolInput(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Run("kontrol", "clusters", "add", "this", "--local")
	write := func(name, text string) string {
		path := filepath.Join(h.Home, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	kubeconfig := func(server, ca, user string) string {
		return fmt.Sprintf("{kind: Config, apiVersion: v1, current-context: x, contexts: [{name: x, context: {cluster: x, "+
			"user: x}}], clusters: [{name: x, cluster: {server: '%s', certificate-authority-data: %s}}], users: [{name: x, "+
			"user: %s}]}",
			server, base64.StdEncoding.EncodeToString([]byte(ca)), user)
	}
	config := func(name, cluster, template string) string {
		return "apiVersion: kontrol.coracle.dev/v1alpha1\nkind: Resource\nmetadata: {name: " + name +
			"}\nspec:\n  clusterName: " + cluster + "\n  template: " + template + "\n---\n"
	}
	configMap := func(name string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", namespace: default}, data: {a: b}}"
	}

	// Kubeconfigs that would run a command or read files of the hub.
	for user, says := range map[string]string{
		"{exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [" + h.Home +
			"/ran], interactiveMode: Never}}": "exec runs a command",
		"{auth-provider: {name: oidc, config: {a: b}}}": "auth-provider is a plugin",
		"{username: a, password: b}":                    "use a token",
	} {
		file := write("bad.yaml", kubeconfig("https://198.51.100.2:6443", "x", user))
		require.Contains(t, h.Fails("kontrol", "clusters", "add", "bad", "--kubeconfig", file), says)
		h.Ctl("create secret generic -n kube-system bad --from-file=kubeconfig=" + file)
		h.Apply("{apiVersion: kontrol.coracle.dev/v1alpha1, kind: Cluster, metadata: {name: bad}, spec: {kubeconfigSecret: " +
			"{namespace: kube-system, name: bad}}}")
		h.Ctl("wait --timeout=120s --for=jsonpath={.status.conditions[0].reason}=KubeconfigInvalid kcl/bad")
		require.Contains(t, h.Run("kontrol", "clusters", "-o", "json"), says)
		h.Ctl("delete -n kube-system kcl/bad")
		h.Ctl("delete secret -n kube-system bad")
	}
	require.NoFileExists(t, filepath.Join(h.Home, "ran"))

	// Servers that are no clusters, send false answers, or have an expired certificate.
	add := func(name, url, ca string) {
		h.Run("kontrol", "clusters", "add", name, "--kubeconfig", write(name+".yaml", kubeconfig(url, ca, "{token: t}")))
		h.Apply(config("on-"+name, name, configMap("on-"+name)))
	}
	page := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>It works!</html>") }
	endless := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}
	lies := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/version" {
			fmt.Fprint(w, `{"gitVersion":"v1.99.0"}`)
			return
		}
		fmt.Fprint(w, `{"kind":"Nonsense","apiVersion":17,"items":"all of them","groups":[{"versions":{}}]}`)
	}
	for name, s := range map[string]http.HandlerFunc{"page": page, "endless": endless, "liar": lies, "expired": lies} {
		url, ca := serve(t, h, name == "expired", s)
		add(name, url, ca)
	}
	for name, reason := range map[string]string{
		"page":    "InvalidAnswer",
		"endless": "InvalidAnswer",
		"expired": "CertificateInvalid",
		"liar":    "Connected",
	} {
		h.Ctl("wait --timeout=120s --for=jsonpath={.status.conditions[0].reason}=" + reason + " kcl/" + name)
	}
	list := h.Run("kontrol", "clusters", "-o", "json")
	require.Contains(t, list, "has expired: renew it there")
	require.Contains(t, list, "the server is not a Kubernetes API server: check the address")
	for _, name := range []string{"page", "endless", "expired"} {
		h.Run("kontrol", "wait", "on-"+name, "--for", "Unreachable")
	}
	h.Ctl("wait --timeout=120s --for=create --for=jsonpath={.state.attemptedGeneration}=1 kas/on-liar.liar")
	require.NotContains(t, h.Run("kontrol", "get", "on-liar"), "Synced", "an invalid answer must not become Synced")

	for says, manifest := range map[string]string{
		"a resource cannot depend on itself": strings.Replace(config("self", "this", configMap("m")), "spec:\n",
			"spec:\n  dependsOn: [self]\n", 1),
		"a Resource could make itself": config("self", "this",
			"{apiVersion: kontrol.coracle.dev/v1alpha1, kind: Resource, metadata: {name: self}}"),
		"Too long: may not be more than 26214": config("large", "this",
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: default}, data: {a: "+
				strings.Repeat("x", kontrol.MaxTemplate)+"}}"),
	} {
		require.Contains(t, h.Fails("ctl", "create", "-f", write("bad.yaml", manifest)), says)
	}
	h.Apply(config("first", "this", configMap("m")))
	h.Run("kontrol", "wait", "first")
	h.Apply(config("second", "this", configMap("m")) +
		config("widget", "this", "{apiVersion: x.dev/v1, kind: Widget, metadata: {name: w, namespace: "+
			"default}}") + config("nowhere", "nocluster", configMap("nowhere")))
	h.Run("kontrol", "wait", "second", "--for", "Conflict")
	require.Contains(t, h.Run("kontrol", "describe", "second"),
		"Resource first already has the same object: delete one of them")
	h.Ctl("wait --timeout=120s --for=create --for=jsonpath={.state.reason}=NoKind kas/widget.this")
	require.Contains(t, h.Run("kontrol", "describe", "widget"),
		"the cluster does not serve the kind yet; the object is applied once it does")
	h.Run("kontrol", "wait", "nowhere", "--for", "Unreachable")
	require.Contains(t, h.Run("kontrol", "describe", "nowhere"), "the cluster does not exist: create it")

	// A kubeconfig Secret that is deleted and created again.
	file := filepath.Join(h.Home, ".kube", "config")
	h.Run("kontrol", "clusters", "add", "again", "--kubeconfig", file)
	h.Apply(config("kept", "again", configMap("kept")))
	h.Run("kontrol", "wait", "kept")
	secret := h.Ctl("get secret -n kube-system kontrol-cluster-again -o yaml")
	h.Ctl("delete secret -n kube-system kontrol-cluster-again")
	h.Run("kontrol", "wait", "kept", "--for", "Unreachable")
	require.Contains(t, h.Run("kontrol", "describe", "kept"), "create it with a kubeconfig under the key kubeconfig")
	require.Contains(t, h.Ctl("get configmap kept -o jsonpath={.data}"), "b", "the object stays")
	h.Ctl("create -f " + write("secret.yaml", secret))
	h.Run("kontrol", "wait", "kept")

	// The healthy cluster has been reconciled all the time, and the invalid objects can be deleted.
	h.Ctl(`patch configmap m --type merge -p {"data":{"a":"drift"}}`)
	h.Ctl("wait --timeout=120s --for=jsonpath={.data.a}=b configmap/m")
	h.Run("kontrol", "wait", "first")
	h.Ctl(`patch kres on-page on-endless on-liar on-expired second widget nowhere --type merge -p {"spec":{"deletionPolicy":"Orphan"}}`)
	h.Ctl("delete kres --all")
	require.Eventually(t, func() bool { return h.Ctl("get kas,kcs -o name") == "" }, host.Patience, 50*time.Millisecond)
}

// serve answers requests on the machine's loopback address over TLS until the test ends. Its certificate is
// self-signed.
func serve(t *testing.T, h *host.Host, expired bool, handler http.Handler) (url, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	until := time.Now().Add(time.Hour)
	if expired {
		until = time.Now().Add(-time.Minute)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: until, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1")},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	l, err := h.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(tls.NewListener(l, &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12,
		}))
	}()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	return "https://" + l.Addr().String(), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
