package containerd

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// TestNoExec: containers run, with the machine's users and their own, where the data directory's file system executes
// no programs, and outlive the process that started them.
func TestNoExec(t *testing.T) {
	c := testConfig(t)
	require.NoError(t, os.MkdirAll(c.DataDir, 0o711))
	require.NoError(t, unix.Mount(c.DataDir, c.DataDir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(c.DataDir, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", c.DataDir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOEXEC, ""))
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, nil))

	r, stop := open(t, c)
	require.Contains(t, log.String(), "mounted with noexec")
	load(t, r, "busybox.tar")
	ctx := context.Background()
	s := spec(c, "p", "a", "sleep", "1000")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	own, _ := runOwn(t, r, "q", func(*runtime.Spec) {})
	stop()

	r, stop = open(t, c)
	for _, id := range []string{s.ID, own.id} {
		require.Equal(t, "works", guest{t, r, id}.sh("cp /bin/busybox /root/busybox && /root/busybox echo works"), id)
	}
	s = spec(c, "p", "b", "sh", "-c", "exit 3")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	for changes := r.Changes(t.Context()); ; <-changes {
		one, err := r.Get(ctx, s.ID)
		require.NoError(t, err)
		if one.State == runtime.Exited {
			require.Equal(t, 3, one.ExitCode)
			break
		}
	}
	require.NoError(t, r.Purge(ctx))
	stop()
	require.NoDirExists(t, filepath.Join(c.DataDir, "containers", own.id))
}
