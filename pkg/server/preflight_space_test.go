package server

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
	"github.com/coracle-dev/coracle/pkg/node/host/thread"
)

// TestSpace: a full disk and a disk without inodes give different errors, and each says how much is needed.
func TestSpace(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, space("run-dir", filepath.Join(dir, "not", "there"), 1, nil))
	require.ErrorContains(t, space("run-dir", dir, 1<<60, nil), "choose another disk with --run-dir")
	require.NoError(t, space("run-dir", dir, 1<<60, func() bool { return true }))
	require.NoError(t, thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=50"); err != nil {
			return err
		}
		require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		_, err := openLock(filepath.Join(dir, startLock))
		require.ErrorContains(t, err, "read-only file system: if an error of the disk caused that")
		require.ErrorContains(t, space("run-dir", dir, 1, func() bool { return true }), "inodes left and needs")
		return nil
	}))
}

// TestLayers: a data directory that does not exist yet is tried where it will be made.
func TestLayers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, layers(filepath.Join(dir, "not", "there")))
	require.NoError(t, mount.Alone(func() error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
		require.ErrorContains(t, layers(filepath.Join(dir, "data")), "tmpfs with --data-dir")
		return nil
	}))
}
