package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestCommandsDuringAStart: a stop or delete that comes while a start is under way leaves no cluster that runs, and a
// second start waits for the first one.
func TestCommandsDuringAStart(t *testing.T) {
	h := host.New(t)
	locked := func() bool { // the command has begun, and its background process has not
		text, err := os.ReadFile(filepath.Join(h.DataDir, "start.lock"))
		return err == nil && len(bytes.TrimSpace(text)) > 0
	}
	for _, command := range []string{"delete", "stop", "delete"} {
		start := h.Command(t.Context(), h.Coracle, "start")
		require.NoError(t, start.Start())
		require.Eventually(t, locked, host.Patience, time.Millisecond)
		h.Run(command)
		_ = start.Wait() // it may have succeeded before the command
		require.Contains(t, h.Fails("status"), "not running", "after %s", command)
		require.NoError(t, os.RemoveAll(filepath.Join(h.DataDir, "start.lock")))
	}

	first, second := h.Command(t.Context(), h.Coracle, "start"), h.Command(t.Context(), h.Coracle, "start")
	require.NoError(t, first.Start())
	require.NoError(t, second.Start())
	require.NoError(t, first.Wait())
	require.NoError(t, second.Wait())
	require.Contains(t, h.Run("status"), "Running")
	require.Contains(t, h.Run("stop"), "Stopped")
	require.Contains(t, h.Fails("get", "pods"), "coracle start", "the cluster is stopped")
}

// TestStatusActsAsAPod: status says that a firewall drops what pods send to the node or to each other.
func TestStatusActsAsAPod(t *testing.T) {
	h := host.New(t)
	h.Start()
	require.Contains(t, h.Run("status"), "pods reach DNS and the API")
	nft := func(args ...string) {
		out, err := h.Command(t.Context(), "nft", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	nft("add", "table", "inet", "firewall")
	nft("add", "chain", "inet", "firewall", "input", "{ type filter hook input priority 0; policy drop; }")
	nft("add", "rule", "inet", "firewall", "input", "iif", "lo", "accept")
	require.Contains(t, h.Fails("status"), "does a firewall drop packets of pods?")
	nft("delete", "table", "inet", "firewall")
	nft("add", "table", "inet", "firewall")
	nft("add", "chain", "inet", "firewall", "forward", "{ type filter hook forward priority 0; policy drop; }")
	text := h.Fails("status")
	require.Contains(t, text, "another pod of this node cannot be reached")
	require.NotContains(t, text, "DNS does not answer")
	nft("delete", "table", "inet", "firewall")
	require.Contains(t, h.Run("status"), "pods reach DNS and the API")
}
