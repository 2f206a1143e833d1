package server

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// TestLeftElsewhere: who deletes a cluster from a machine reads what stays on others.
func TestLeftElsewhere(t *testing.T) {
	server, agent := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(server, "store"), 0o700))
	for _, dir := range []string{server, agent} {
		require.NoError(t, rememberNodeName(dir, "box"))
	}
	running := socket.Status{Running: true}
	require.Empty(t, leftElsewhere(server, running))
	require.Empty(t, leftElsewhere(t.TempDir(), socket.Status{}), "nothing is here")
	require.Contains(t, leftElsewhere(server, socket.Status{}), "if other machines joined this cluster: ")
	require.Contains(t, leftElsewhere(agent, running), "`coracle ctl delete node box`")

	running.Joined = []string{"a", "b"}
	require.Equal(t, "joined machines: a, b: their containers go on running without this server; run `coracle delete` "+
		"on each", leftElsewhere(server, running))
	for i := range mostJoined {
		running.Joined = append(running.Joined, fmt.Sprint(i))
	}
	require.Contains(t, leftElsewhere(server, running), "6, 7 and 2 more: ")
}

// TestANodeStartsNoServer: `coracle start` on a machine that has joined a cluster would begin another, empty one.
func TestANodeStartsNoServer(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, checkJoined(dir))
	require.NoError(t, os.MkdirAll(pkiDir(dir), 0o700))
	require.NoError(t, checkJoined(dir))
	require.NoError(t, os.WriteFile(filepath.Join(pkiDir(dir), machineCertificate), nil, 0o600))
	require.ErrorContains(t, checkJoined(dir), "`coracle agent --join https://SERVER:6443` resumes it")
	require.True(t, IsNode(dir))
	require.NoError(t, os.Mkdir(filepath.Join(dir, storeDir), 0o700))
	require.NoError(t, checkJoined(dir), "a server")
	require.False(t, IsNode(dir))
}
