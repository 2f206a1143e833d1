package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// joinWords returns the arguments for joining another machine; the last argument is the token file.
func joinWords(t *testing.T, h *host.Host) []string {
	t.Helper()
	words := strings.Fields(h.Run("token", "create", "--print-join-command"))
	require.Equal(t, []string{"|", "coracle", "agent", "--join"}, words[2:6])
	file := filepath.Join(h.Home, "token")
	require.NoError(t, os.WriteFile(file, []byte(words[1]+"\n"), 0o600))
	return []string{"agent", "--join", words[6], "--token-file", file}
}

func joinToken(t *testing.T, words []string) string {
	t.Helper()
	token, err := os.ReadFile(words[len(words)-1])
	require.NoError(t, err)
	return strings.TrimSpace(string(token))
}

// agent runs `coracle agent` in the foreground. nsenter is replaced by the agent, so signals reach it.
type agent struct {
	*exec.Cmd
	t   *testing.T
	log agentLog
}

// agentLog collects the agent's log, and signals when the agent is running.
type agentLog struct {
	mu      sync.Mutex
	text    bytes.Buffer
	running chan struct{}
	told    bool
}

func (l *agentLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.text.Write(b)
	if !l.told && bytes.Contains(l.text.Bytes(), []byte("msg=running")) {
		l.told = true
		close(l.running)
	}
	return n, err
}

func (l *agentLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startAgent returns once the agent is running and its node is Ready.
func startAgent(t *testing.T, h *host.Host, words []string) *agent {
	t.Helper()
	a := &agent{
		Cmd: h.Command(context.Background(), h.Coracle, words...),
		t:   t,
		log: agentLog{running: make(chan struct{})},
	}
	a.Stdout, a.Stderr = &a.log, &a.log
	require.NoError(t, a.Start())
	select {
	case <-a.log.running:
	case <-time.After(host.Patience):
		_ = a.Process.Kill()
		_ = a.Wait()
		t.Fatalf("the agent did not start:\n%s", a.log.String())
	}
	return a
}

func (a *agent) end() {
	a.t.Helper()
	require.NoError(a.t, a.Process.Signal(syscall.SIGTERM))
	require.NoError(a.t, a.Wait(), a.log.String())
}

func (a *agent) kill() {
	a.t.Helper()
	require.NoError(a.t, a.Process.Signal(syscall.SIGKILL), a.log.String())
	require.Error(a.t, a.Wait())
}

// TestJoin joins a second machine to a cluster: its pods run, are reachable and can be inspected like any other.
func TestJoin(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	token := []byte(joinToken(t, words))
	token[len(token)-1] ^= 1 // refused in any case: "a" becomes invalid, other letters change
	wrong := append(slices.Clone(words[:3]), "--token", string(token))
	require.Contains(t, other.Fails(wrong...), "token")

	agent := startAgent(t, other, words)
	defer agent.end()
	h.Ctl("wait node/" + other.Name + " --for=condition=Ready --timeout=120s")
	other.Load()

	h.Apply(strings.NewReplacer("NODE", other.Name, "HERE", h.Name).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: far, labels: {app: far}}
spec:
  nodeName: NODE
  containers:
  - {name: far, image: coracle/hello, imagePullPolicy: IfNotPresent, volumeMounts: [{name: trust, mountPath: /trust}]}
  volumes:
  - name: trust
    projected: {sources: [{clusterTrustBundle: {signerName: kubernetes.io/kube-apiserver-serving, labelSelector: {}, path: ca.pem}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: certified}
spec:
  nodeName: NODE
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "3600"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes:
  - name: v
    projected: {sources: [{podCertificate: {signerName: example.org/e2e, keyType: ED25519, credentialBundlePath: bundle.pem}}]}
---
apiVersion: v1
kind: Service
metadata: {name: far}
spec: {selector: {app: far}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near}
spec:
  nodeName: HERE
  containers: [{name: near, image: "busybox:1.36", command: [sleep, "3600"]}]
`))
	h.Ctl("wait pod/far pod/near --for=condition=Ready --timeout=120s")
	h.Shows("serves on", "logs far")
	require.Eventually(t, func() bool {
		return h.Ctl("get podcertificaterequests -o jsonpath={.items[*].spec.podName}") == "certified"
	}, host.Patience, 100*time.Millisecond, "a joined node requests certificates for its pods")
	h.Shows("far: hello", "exec near -- wget -q -O - http://far") // from a pod on one node to a service on the other
	answer, err := h.Curl("http://" + h.Ctl("get service far -o jsonpath={.spec.clusterIP}"))
	require.NoError(t, err)
	require.Contains(t, answer, "far: hello")
}

// thief uses the join token to request a certificate for a node name that does not exist yet. status returns the
// HTTP status of a request with that certificate.
func thief(t *testing.T, h *host.Host, words []string, name string) (status func() int) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	url, token := words[2], joinToken(t, words)
	ask := func(method, path string, body any, certificates ...tls.Certificate) (int, []byte) {
		t.Helper()
		text, err := json.Marshal(body)
		require.NoError(t, err)
		request, err := http.NewRequestWithContext(t.Context(), method, url+path, bytes.NewReader(text))
		require.NoError(t, err)
		if certificates == nil {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certificates},
			DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
				err = h.InNetwork(func() (err error) {
					conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
					return err
				})
				return conn, err
			},
		}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport, Timeout: host.Patience}).Do(request)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err = io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, text
	}
	code, text := ask(http.MethodPost, "/coracle/join", map[string]any{
		"nodeName":  name,
		"nodeIP":    "198.51.100.9",
		"publicKey": public,
	})
	require.Equal(t, http.StatusOK, code, "%s", text)
	var joined struct{ Client []byte }
	require.NoError(t, json.Unmarshal(text, &joined))
	block, _ := pem.Decode(joined.Client)
	certificate := tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
	return func() int {
		t.Helper()
		code, _ := ask(http.MethodGet, "/api/v1/nodes/"+name, nil, certificate)
		return code
	}
}

// TestNamesAreKept checks that a machine with only a join token cannot take an existing node's name.
func TestNamesAreKept(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	node := func() string { return h.Ctl("get node " + other.Name + " -o jsonpath={.metadata.uid}") }

	taken := other.Fails(append(words, "--node-name", h.Name)...)
	require.Contains(t, taken, "belongs to another machine", "the server's own node")
	require.Equal(t, 1, strings.Count(taken, "\n"), taken)

	stolen := thief(t, h, words, other.Name)
	require.Equal(t, http.StatusNotFound, stolen(), "a certificate for a name without a node")
	startAgent(t, other, words).kill()
	first := node()
	require.Equal(t, http.StatusUnauthorized, stolen(), "the certificate is rejected once another machine has the name")
	info, err := os.Stat(filepath.Join(other.DataDir, "pki", "machine.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	// Both machines restart with only their disks.
	h.Kill()
	h.Run("start")
	startAgent(t, other, words).end()
	require.Equal(t, first, node())

	require.Contains(t, other.Run("delete"), "coracle ctl delete node "+other.Name)
	taken = other.Fails(words...)
	require.Contains(t, taken, "coracle ctl delete node "+other.Name)
	require.Contains(t, taken, "--node-name")
	require.Equal(t, 1, strings.Count(taken, "\n"), taken)
	require.Equal(t, first, node())

	h.Ctl("delete node " + other.Name)
	agent := startAgent(t, other, words)
	require.NotEqual(t, first, node())
	require.Contains(t, h.Run("delete"), "joined machines: "+other.Name+": their containers go on running")
	text := other.Fails("status")
	require.Contains(t, text, "this machine cannot reach it either: run `coracle status` on the servers")
	require.NotContains(t, text, "firewall")
	agent.kill()
}

// TestTokens checks that a token is accepted until it is revoked, and that it can be passed outside the command line.
func TestTokens(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	url := words[2]
	require.NotContains(t, h.Run("status"), "coracle2.", "status tells no secret")
	token := strings.TrimSpace(h.Run("token", "create", "--ttl", "1h", "--description", "rack 7"))
	id := strings.Split(token, ".")[2]
	list := h.Run("token", "list")
	require.Contains(t, list, "rack 7")
	require.NotContains(t, list, strings.Split(token, ".")[3])
	require.NotContains(t, h.Ctl("get secrets -n kube-system -o yaml"), strings.Split(token, ".")[3])

	require.Contains(t, other.Fails("agent", "--join", url), "coracle token create")
	require.Contains(t, other.Fails("agent", "--join", url, "--token", "x"), "visible in the process list", "a warning")
	h.Run("token", "revoke", id)
	file := filepath.Join(other.Home, "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	require.Contains(t, other.Fails("agent", "--join", url, "--token-file", file), "revoked")
	require.NoError(t, os.WriteFile(file, []byte(h.Run("token", "create")), 0o600))
	startAgent(t, other, []string{"agent", "--join", url, "--token-file", file}).end()
}

// TestDeletedNodeIsShutOut checks that a deleted node loses access at once, and that its agent stops its pods and
// exits, until it joins again with a token. The server's own node registers again.
func TestDeletedNodeIsShutOut(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	without := words[:3]
	startAgent(t, other, words).kill()
	// The agent starts again without the token.
	a := startAgent(t, other, without)
	other.Load()
	h.Apply(`{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: ` + other.Name + `, terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "3600"]}]}}`)
	h.Ctl("wait --for=condition=Ready pod/p --timeout=60s")
	h.Ctl("delete node " + other.Name)
	require.Error(t, a.Wait())
	require.Contains(t, a.log.String(), "stopped pod default/p")
	require.Contains(t, a.log.String(), "was deleted from the cluster")
	require.Contains(t, other.Fails(without...), "was deleted from the cluster")
	require.Contains(t, h.Fails("ctl", "get", "node", other.Name), "not found")
	startAgent(t, other, words).end()

	uid := func() string {
		return h.Ctl("get nodes -o jsonpath={.items[?(@.metadata.name==\"" + h.Name + "\")].metadata.uid}")
	}
	first := uid()
	h.Ctl("delete node " + h.Name)
	require.Eventually(t, func() bool {
		now := uid()
		return now != "" && now != first
	}, host.Patience, 100*time.Millisecond)
}
