package containerd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestControllersAreRestored: the root cgroup gets back the controllers that it had before the first start, and a later
// start does not record what the first one enabled.
func TestControllersAreRestored(t *testing.T) {
	require.Equal(t, []string{"hugetlb", "misc"}, added("memory pids\n", "cpu io memory hugetlb pids misc\n", ofSystemd))
	require.Equal(t, []string{"cpu", "misc"}, added("memory pids\n", "cpu memory pids misc\n", nil))

	dir := t.TempDir()
	control := filepath.Join(dir, "control")
	write := func(text string) { require.NoError(t, os.WriteFile(control, []byte(text), 0o600)) }
	write("memory pids")
	require.NoError(t, recordControllers(control, dir))
	write("memory pids misc")
	require.NoError(t, recordControllers(control, dir), "another start")
	require.NoError(t, restoreControllers(control, dir, ofSystemd))
	have, err := os.ReadFile(control)
	require.NoError(t, err)
	require.Equal(t, "-misc", string(have), "what the kernel was asked for")
	write("memory pids misc")
	require.NoError(t, restoreControllers(control, dir, nil), "nothing is recorded any more")
	have, err = os.ReadFile(control)
	require.NoError(t, err)
	require.Equal(t, "memory pids misc", string(have))
}
