package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPluginsFindKubectl checks that a plugin can call kubectl although this program is called coracle.
func TestPluginsFindKubectl(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBECACHEDIR", dir)
	self, err := os.Executable()
	require.NoError(t, err)
	link, err := newPlugins("/usr/bin/coracle").link()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "bin", "kubectl"), link)
	target, err := os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, self, target)

	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("/an/older/coracle", link))
	_, err = newPlugins("coracle").link()
	require.NoError(t, err)
	target, err = os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, self, target, "the link of an older binary is replaced")

	named, err := newPlugins(link).link()
	require.NoError(t, err)
	require.Equal(t, link, named, "started as kubectl, that link is it")
}
