package server

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNodeNameIsKept checks that a changed hostname does not change the node name, and that another --node-name is
// an error.
func TestNodeNameIsKept(t *testing.T) {
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	for _, c := range []struct{ given, hostname, want, err string }{
		{"", "Boat", "boat", ""},
		{"", "renamed", "boat", ""},
		{"boat", "renamed", "boat", ""},
		{"ship", "boat", "", `this machine is the node "boat" of its cluster, and --node-name says "ship"`},
	} {
		name, err := nodeName(dir, c.given, c.hostname, quiet)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, name)
		require.NoError(t, rememberNodeName(dir, name))
	}
	require.NoError(t, rememberNodeName(dir, "other"))
	name, err := nodeName(dir, "", "renamed", quiet)
	require.NoError(t, err)
	require.Equal(t, "boat", name, "the machine has a name")

	dir = t.TempDir()
	require.NoError(t, rememberNodeName(dir, "lost"))
	name, err = nodeName(dir, "", "spare", quiet)
	require.NoError(t, err)
	require.Equal(t, "lost", name, "a spare machine takes the place of the lost one")
	_, err = nodeName(dir, "spare", "spare", quiet)
	require.ErrorContains(t, err, "leave --node-name out")
}
