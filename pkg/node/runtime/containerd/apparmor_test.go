package containerd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLoadedProfile reads a list as the kernel prints it. hack/machine tests profiles on a machine that has AppArmor.
func TestLoadedProfile(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, loadedProfile(dir, "web"), "no such file")
	require.NoError(t, unloadProfile(filepath.Join(dir, "none"), "web"), "a host without AppArmor")
	list := "web (enforce)\nmy web (complain)\nweb-2 (enforce)\n/usr/bin/man (enforce)\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "profiles"), []byte(list), 0o600))
	for _, name := range []string{"web", "my web", "web-2", "/usr/bin/man"} {
		require.NoError(t, loadedProfile(dir, name))
	}
	for _, name := range []string{"", "my", "web (enforce)", "web-"} {
		require.ErrorContains(t, loadedProfile(dir, name), "is not loaded on this node")
	}
}
