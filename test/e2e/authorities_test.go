package e2e

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestAuthoritiesAreReplaced replaces the CAs of a running cluster of two machines, and kills the server in each phase.
func TestAuthoritiesAreReplaced(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	a := startAgent(t, other, words)
	other.Load()
	h.Apply(strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: far}
spec:
  nodeName: NODE
  containers: [{name: far, image: "busybox:1.36", command: [sleep, "3600"]}]
`, "NODE", other.Name))
	h.Ctl("wait pod/far --for=condition=Ready --timeout=120s")
	works := func(when string) {
		t.Helper()
		require.Equal(t, "here\n", h.Ctl("exec far -- echo here"), when)
	}
	const own = "/var/run/secrets/kubernetes.io/serviceaccount/"
	// asPod acts as a program in a pod that has read the bundle ca earlier.
	asPod := func(ca string) (string, error) {
		return other.Try("ctl", "--kubeconfig=", "--server=https://198.51.100.2:6443", "--certificate-authority="+ca,
			"--token="+h.Ctl("exec far -- cat "+own+"token"), "auth", "whoami")
	}
	read := func(name string) string {
		file := filepath.Join(other.Home, name)
		require.NoError(t, os.WriteFile(file, []byte(h.Ctl("exec far -- cat "+own+"ca.crt")), 0o600))
		return file
	}
	oldCA := read("old-ca.crt")
	kubeconfig, err := os.ReadFile(filepath.Join(h.DataDir, "kubeconfig"))
	require.NoError(t, err)
	old := filepath.Join(h.Home, "old-kubeconfig")
	require.NoError(t, os.WriteFile(old, kubeconfig, 0o600))
	withOld := func() (string, error) { return h.Try("ctl", "--kubeconfig="+old, "get", "nodes") }
	// The same command completes a phase at whatever point it was interrupted.
	phase := func(done string, args ...string) {
		t.Helper()
		command := h.Command(t.Context(), h.Coracle, args...)
		require.NoError(t, command.Start())
		h.Kill()
		_ = command.Wait()
		h.Run("start")
		if out, err := h.Try(args...); err != nil {
			require.Contains(t, out, done)
		}
	}
	node := h.Ctl("get nodes -o jsonpath={.items[*].metadata.uid}")

	phase("in progress already", "certs", "rotate", "--ca")
	require.Contains(t, h.Run("certs", "check"), "Being replaced: server, client, node.")
	works("both are trusted")
	out, err := withOld()
	require.NoError(t, err, out)
	out, err = asPod(oldCA)
	require.NoError(t, err, out)
	require.Contains(t, out, "system:serviceaccount:default:default")
	require.Contains(t, h.Fails("certs", "rotate", "--ca", "--finish"),
		"user coracle:admin sends requests with a client certificate of the old authority")
	require.Eventually(t, func() bool {
		return !strings.Contains(h.Run("certs", "check"), "node "+other.Name)
	}, host.Patience, 200*time.Millisecond,
		"the agent follows by itself")
	require.Contains(t, other.Run("certs", "check"), "authority of the API, as joined, being replaced")
	require.Eventually(t, func() bool {
		return strings.Count(h.Ctl("exec far -- cat "+own+"ca.crt"), "BEGIN") == 2
	}, host.Patience, 200*time.Millisecond)
	works("the agent has followed")
	bothCA := read("both-ca.crt")
	oldToken := joinToken(t, words)

	phase("no authority is being replaced", "certs", "rotate", "--ca", "--finish", "--force")
	require.NotContains(t, h.Run("certs", "check"), "replaced")
	works("the old one is not trusted any more")
	_, err = withOld()
	require.Error(t, err)
	_, err = asPod(oldCA)
	require.Error(t, err)
	out, err = asPod(bothCA)
	require.NoError(t, err, out)
	require.Eventually(t, func() bool {
		return !strings.Contains(other.Run("certs", "check"), "replaced")
	}, host.Patience, 200*time.Millisecond)

	a.end()
	h.Run("stop")
	h.Run("start")
	a = startAgent(t, other, words[:3])
	defer a.end()
	h.Ctl("wait pod/far --for=condition=Ready --timeout=120s")
	works("both have started again")
	require.Equal(t, node, h.Ctl("get nodes -o jsonpath={.items[*].metadata.uid}"),
		"the machines are the ones that they were")
	_, err = withOld()
	require.Error(t, err)
	// Clients that trust the server's new CA refuse an old certificate.
	require.NoError(t,
		os.WriteFile(old,
			[]byte(replaceAuthority(t, string(kubeconfig), h.Ctl("get configmap kube-root-ca.crt -o "+
				"jsonpath={.data.ca\\.crt}"))), 0o600))
	out, err = withOld()
	require.Error(t, err)
	require.Contains(t, out, "Unauthorized")
	_, authority, _ := strings.Cut(oldToken, ".")
	require.NotContains(t, joinToken(t, joinWords(t, h)), authority[:64], "new tokens name the new authority")
}

func replaceAuthority(t *testing.T, kubeconfig, ca string) string {
	t.Helper()
	const key = "certificate-authority-data: "
	before, after, ok := strings.Cut(kubeconfig, key)
	require.True(t, ok)
	_, after, _ = strings.Cut(after, "\n")
	return before + key + base64.StdEncoding.EncodeToString([]byte(ca)) + "\n" + after
}
