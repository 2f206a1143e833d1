package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// joinWords are the arguments with which another machine joins.
func joinWords(t *testing.T, h *host.Host) []string {
	t.Helper()
	var status struct{ Join string }
	require.NoError(t, json.Unmarshal([]byte(h.Run("status", "-o", "json")), &status))
	words := strings.Fields(status.Join)
	require.Equal(t, "coracle", words[0])
	return words[1:]
}

// agent is `coracle agent` in the foreground of a machine. nsenter has become the agent, so signals are the agent's.
type agent struct {
	*exec.Cmd
	t   *testing.T
	log agentLog
}

// agentLog keeps what an agent says, and tells when it says that it runs.
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

// startAgent returns once the agent runs and its node is Ready.
func startAgent(t *testing.T, h *host.Host, words []string) *agent {
	t.Helper()
	a := &agent{Cmd: h.Command(context.Background(), h.Coracle, words...), t: t, log: agentLog{running: make(chan struct{})}}
	a.Stdout, a.Stderr = &a.log, &a.log
	require.NoError(t, a.Start())
	select {
	case <-a.log.running:
	case <-time.After(host.Patience):
		_ = a.Process.Kill()
		_ = a.Wait()
		t.Fatalf("the agent does not run:\n%s", a.log.String())
	}
	return a
}

// end lets the agent stop by itself.
func (a *agent) end() {
	a.t.Helper()
	require.NoError(a.t, a.Process.Signal(syscall.SIGTERM))
	require.NoError(a.t, a.Wait(), a.log.String())
}

// kill ends it with SIGKILL.
func (a *agent) kill() {
	a.t.Helper()
	require.NoError(a.t, a.Process.Signal(syscall.SIGKILL), a.log.String())
	require.Error(a.t, a.Wait())
}

// TestJoin adds a second machine to a cluster: its pods are run, reached and looked into like any other.
func TestJoin(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	wrong := append([]string{}, words...)
	wrong[len(wrong)-1] = wrong[len(wrong)-1][:80] + "aaaa"
	require.Contains(t, other.Fails(wrong...), "token")

	agent := startAgent(t, other, words)
	defer agent.end()
	h.Ctl("wait node/" + other.Name + " --for=condition=Ready --timeout=30s")
	other.Load()

	h.Apply(strings.NewReplacer("NODE", other.Name, "HERE", h.Name).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: far, labels: {app: far}}
spec:
  nodeName: NODE
  containers:
  - {name: far, image: coracle/hello, imagePullPolicy: IfNotPresent}
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
	h.Ctl("wait pod/far pod/near --for=condition=Ready --timeout=30s")
	require.Contains(t, h.Ctl("logs far"), "serves on")
	require.Contains(t, h.Ctl("exec near -- wget -q -O - http://far"), "far: hello", "from a pod on the one node to a service on the other")
	answer, err := h.Curl("http://" + h.Ctl("get service far -o jsonpath={.spec.clusterIP}"))
	require.NoError(t, err)
	require.Contains(t, answer, "far: hello")
}

// TestNamesAreKept: the join token alone does not make a machine another one.
func TestNamesAreKept(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	node := func() string { return h.Ctl("get node " + other.Name + " -o jsonpath={.metadata.uid}") }

	taken := other.Fails(append(words, "--node-name", h.Name)...)
	require.Contains(t, taken, "belongs to another machine", "the server's own node")
	require.Equal(t, 1, strings.Count(taken, "\n"), taken)

	startAgent(t, other, words).kill()
	first := node()
	info, err := os.Stat(filepath.Join(other.DataDir, "pki", "machine.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	// Neither of the two has anything left but its disk.
	h.Kill()
	h.Run("start")
	startAgent(t, other, words).end()
	require.Equal(t, first, node())

	other.Run("delete")
	taken = other.Fails(words...)
	require.Contains(t, taken, "coracle ctl delete node "+other.Name)
	require.Contains(t, taken, "--node-name")
	require.Equal(t, 1, strings.Count(taken, "\n"), taken)
	require.Equal(t, first, node())

	h.Ctl("delete node " + other.Name)
	startAgent(t, other, words).end()
	require.NotEqual(t, first, node())
}
