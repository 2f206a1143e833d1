package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
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

// TestTwoClusters: two clusters on one machine must not have the same addresses, or the port of DNS; with ranges, an
// address and ports of its own, each has its pods' network.
func TestTwoClusters(t *testing.T) {
	h := host.New(t)
	h.Start()
	dir := t.TempDir()
	other := []string{"--data-dir", dir + "/data", "--run-dir", dir + "/run"}
	defer func() { h.Run(append([]string{"delete"}, other...)...) }()
	start := append([]string{"start", "--merge-kubeconfig=false", "--listen", "0.0.0.0:7443", "--agent-listen", ":11250",
		"--cluster-cidr", "10.52.0.0/16"}, other...)
	text := h.Fails(start...)
	require.Contains(t, text, "the cluster of "+h.DataDir+" on this machine has the addresses 10.43.0.0/16")
	require.Contains(t, text, "--service-cidr")
	start = append(start, "--service-cidr", "10.53.0.0/16")
	require.Contains(t, h.Fails(start...), "198.51.100.2:10053, where this node serves DNS, is in use")
	out, err := h.Command(t.Context(), "ip", "addr", "add", "198.51.100.3/24", "dev", "eth0").CombinedOutput()
	require.NoError(t, err, "%s", out)
	h.Run(append(start, "--node-ip", "198.51.100.3")...)
	for _, flags := range [][]string{nil, other} {
		require.Contains(t, h.Run(append([]string{"status"}, flags...)...), "pods reach DNS and the API")
	}
}

// TestStatusActsAsAPod: status names the rules that a firewall lacks if it drops what pods send to the node or to each
// other, and pods have their network with these rules.
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
	obey := func(rules ...string) {
		t.Helper()
		text := h.Fails("status")
		for _, rule := range rules {
			require.Contains(t, text, "lacks a rule: nft "+rule)
			nft(strings.Fields(rule)...)
		}
		require.Contains(t, h.Run("status"), "pods reach DNS and the API")
	}
	obey("insert rule inet firewall input ip saddr 10.42.0.0/16 accept")

	// Docker's policy drops what pods send to each other, until Coracle has added rules to Docker's chain for others.
	nft("add", "table", "ip", "filter")
	nft("add", "chain", "ip", "filter", "DOCKER-USER")
	nft("add", "chain", "ip", "filter", "FORWARD", "{ type filter hook forward priority 0; policy drop; }")
	nft("add", "rule", "ip", "filter", "FORWARD", "counter", "jump", "DOCKER-USER")
	require.Eventually(t, func() bool {
		out, err := h.Command(t.Context(), "nft", "list", "chain", "ip", "filter", "DOCKER-USER").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.Count(string(out), "_net pods 10.42.0.0/16") == 2
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, h.Run("status"), "pods reach DNS and the API")
	nft("delete", "table", "ip", "filter")

	nft("add", "table", "ip", "filter")
	nft("add", "chain", "ip", "filter", "FORWARD", "{ type filter hook forward priority 0; }")
	nft("add", "rule", "ip", "filter", "FORWARD", "counter", "reject")
	require.Contains(t, h.Fails("status"), "another pod of this node cannot be reached")
	obey("insert rule ip filter FORWARD ip saddr 10.42.0.0/16 accept",
		"insert rule ip filter FORWARD ip daddr 10.42.0.0/16 accept")
}
