package server

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// TestShimsAreKnownByTheirExecutables checks that the status reads neither the command lines of shims, which can
// block for a throttled pod, nor other processes.
func TestShimsAreKnownByTheirExecutables(t *testing.T) {
	const dataDir, runDir = "/data", "/run/coracle"
	proc := t.TempDir()
	add := func(pid int, exe string, ours bool) {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.Symlink(exe, filepath.Join(dir, "exe")))
		hangs := []string{"cmdline", "environ", "maps", "smaps"} // a pipe without a writer: opening it blocks
		if ours {
			require.NoError(t,
				os.WriteFile(filepath.Join(dir, "smaps_rollup"),
					[]byte("00400000-7ffd [rollup]\nRss:  9 kB\nPss:  7 kB\nPss_Anon: 3 kB\n"), 0o600))
		} else {
			hangs = append(hangs, "smaps_rollup")
		}
		for _, name := range hangs {
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
		}
	}
	add(os.Getpid(), "/usr/bin/coracle", true)
	add(101, "/data/containerd/shim/0123/coracle-shim", true)
	add(102, "/run/coracle/containerd/shim/coracle-shim (deleted)", true)
	add(103, "/usr/bin/sleep", false)
	add(104, "/database/postgres", false)
	require.NoError(t, os.Mkdir(filepath.Join(proc, "105"), 0o700), "it ended while we looked")
	require.NoError(t, os.Symlink("self", filepath.Join(proc, "thread-self")))

	require.Equal(t, []socket.Process{
		{PID: os.Getpid(), Name: "coracle", PSS: 7 << 10},
		{PID: 101, Name: "shim", PSS: 7 << 10},
		{PID: 102, Name: "shim", PSS: 7 << 10},
	}, processes(proc, dataDir, runDir))
}
