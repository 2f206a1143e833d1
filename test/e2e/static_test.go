package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestStaticPods checks that a joined machine's static pods start and keep running while no server answers and the
// agent is killed, and that the API shows them again when it is back.
func TestStaticPods(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	dir, out := filepath.Join(other.DataDir, "agent", "pod-manifests"), filepath.Join(other.Home, "out")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.MkdirAll(out, 0o755))
	manifest := func(name, more string) {
		t.Helper()
		next := filepath.Join(dir, "."+name)
		require.NoError(t, os.WriteFile(next, []byte(strings.NewReplacer("NAME", name, "OUT", out).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "busybox:1.36", imagePullPolicy: IfNotPresent, command: [sh, -c, "echo started >> /out/NAME; echo hello; exec sleep 3600"], volumeMounts: [{name: out, mountPath: /out}]`+more+`}
  volumes: [{name: out, hostPath: {path: OUT}}]
`)), 0o600))
		require.NoError(t, os.Rename(next, filepath.Join(dir, name+".yaml")))
	}
	started := func(name string) int {
		data, _ := os.ReadFile(filepath.Join(out, name))
		return strings.Count(string(data), "started")
	}
	a := startAgent(t, other, words)
	other.Load()
	manifest("first", "")
	manifest("refused", ", envFrom: [{secretRef: {name: s}}]")
	first := "first-" + other.Name
	h.Ctl("wait pod/" + first + " --for=create --timeout=120s")
	h.Ctl("wait pod/" + first + " --for=condition=Ready --timeout=120s")
	require.Eventually(t, func() bool { return h.Ctl("logs "+first) == "hello\n" }, host.Patience, 50*time.Millisecond)
	require.Equal(t, first+"\n", h.Ctl("exec "+first+" -- hostname"))
	require.Eventually(t, func() bool {
		return strings.Contains(h.Ctl("get events --field-selector reason=InvalidStaticPod"),
			"refused.yaml: static pods may not reference secrets")
	}, host.Patience, 100*time.Millisecond)

	// Only the containers remain. The next agent finds no server.
	a.kill()
	h.Kill()
	manifest("second", "")
	a = &agent{
		Cmd: other.Command(context.Background(), other.Coracle, words...),
		t:   t,
		log: agentLog{running: make(chan struct{})},
	}
	a.Stdout, a.Stderr = &a.log, &a.log
	require.NoError(t, a.Start())
	require.Eventually(t, func() bool {
		return started("second") == 1
	}, host.Patience, 100*time.Millisecond, "a pod starts without a server")
	require.Equal(t, 1, started("first"), "the other pod keeps running")

	h.Run("start")
	select {
	case <-a.log.running:
	case <-time.After(host.Patience):
		t.Fatalf("the agent did not reconnect to the server:\n%s", a.log.String())
	}
	defer a.end()
	second := "second-" + other.Name
	h.Ctl("wait pod/" + second + " --for=create --timeout=120s")
	h.Ctl("wait pod/" + first + " pod/" + second + " --for=condition=Ready --timeout=120s")
	uid := func() string { return h.Ctl("get pod " + second + " --ignore-not-found -o jsonpath={.metadata.uid}") }
	before := uid()
	h.Ctl("delete pod " + second)
	require.Eventually(t, func() bool {
		now := uid()
		return now != "" && now != before
	}, host.Patience, 100*time.Millisecond, "its mirror is made again")
	h.Ctl("drain " + other.Name + " --ignore-daemonsets --timeout=120s")
	require.NoError(t, os.Remove(filepath.Join(dir, "first.yaml")))
	h.Ctl("wait pod/" + first + " --for=delete --timeout=120s")
	require.Equal(t, []int{1, 1}, []int{started("first"), started("second")}, "each pod started once")
}
