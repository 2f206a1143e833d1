package server

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRemoveDir checks that all contents of a directory are removed, for any spelling of its path and any file
// type, and that files elsewhere stay.
func TestRemoveDir(t *testing.T) {
	remove := func(path string) { t.Helper(); require.NoError(t, removeDir(t.Context(), path)) }
	dir := t.TempDir()
	data, link := filepath.Join(dir, "data"), filepath.Join(dir, "link")
	fill := func() { require.NoError(t, os.MkdirAll(filepath.Join(data, "store", "etcd"), 0o700)) }
	fill()
	remove(data + "/")
	require.NoDirExists(t, data)
	remove(data)

	fill()
	require.NoError(t, os.Symlink("data", link))
	remove(link)
	left, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Empty(t, left)
	remove(data)
	remove(link)
	_, err = os.Lstat(link)
	require.NoError(t, err)
}

func TestRemoveDirThatIsAMountPoint(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	ended := make(chan error)
	go func() {
		ended <- func() error {
			runtime.LockOSThread() // the thread gets its own mount namespace and ends with the goroutine
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("none", dir, "tmpfs", 0, "size=1m"),
				os.MkdirAll(filepath.Join(dir, "store", "etcd"), 0o700), removeDir(t.Context(), dir))
			if err != nil {
				return err
			}
			left, err := os.ReadDir(dir)
			if len(left) > 0 {
				err = errors.Join(err, errors.New("something is left"))
			}
			return err
		}()
	}()
	require.NoError(t, <-ended)
}
