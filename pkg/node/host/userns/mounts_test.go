package userns_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/host/userns/usernstest"
)

//nolint:gochecknoglobals // a constant
var ids = userns.Range{First: 5 * userns.Unit, Count: userns.Unit}

func namespace(t *testing.T) int {
	pid, end, err := usernstest.Start(ids)
	require.NoError(t, err)
	t.Cleanup(end)
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, users.Close()) })
	return int(users.Fd())
}

// TestMapIDs checks that files of an ID-mapped mount belong to the namespace's IDs, and that new files are stored
// with the IDs inside the namespace.
func TestMapIDs(t *testing.T) {
	users := namespace(t)
	ownerOf := func(fd int, name string) uint32 {
		var st unix.Stat_t
		require.NoError(t, unix.Fstatat(fd, name, &st, 0))
		return st.Uid
	}

	dir := t.TempDir()
	for name, owner := range map[string]int{"root": 0, "seven": 7, "beyond": userns.Unit} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o666))
		require.NoError(t, os.Chown(filepath.Join(dir, name), owner, owner))
	}
	fd, err := mount.BindPath(dir, true)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, mount.MapIDs(fd, users))
	require.Equal(t, ids.First, ownerOf(fd, "root"))
	require.Equal(t, ids.First+7, ownerOf(fd, "seven"))
	require.EqualValues(t, 65534, ownerOf(fd, "beyond"), "nobody's")
	require.NoError(t, unix.Fchownat(fd, "root", int(ids.First)+9, -1, 0))
	info, err := os.Stat(filepath.Join(dir, "root"))
	require.NoError(t, err)
	require.EqualValues(t, 9, info.Sys().(*syscall.Stat_t).Uid)

	// The error names the type of a file system that cannot be mapped, also if the mount is mapped already.
	proc, err := mount.BindPath("/proc", false)
	require.NoError(t, err)
	defer unix.Close(proc)
	for file, kind := range map[int]string{proc: "proc", fd: ""} {
		err := mount.MapIDs(file, users)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, kind+" has no ID-mapped mounts")
	}
}

// TestMappedOverlay checks that the lower layers of an overlay show the namespace's IDs, and that the upper layer
// stores them.
func TestMappedOverlay(t *testing.T) {
	users := namespace(t)
	dir := t.TempDir()
	o := mount.Overlay{Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	for i := range 3 {
		o.Lower = append(o.Lower, filepath.Join(dir, fmt.Sprint(i)))
	}
	scratch := filepath.Join(dir, "scratch")
	for _, d := range append([]string{o.Upper, o.Work, scratch}, o.Lower...) {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	for _, d := range o.Lower {
		require.NoError(t, os.WriteFile(filepath.Join(d, filepath.Base(d)), []byte("x"), 0o600))
	}
	require.NoError(t, mount.Alone(func() error {
		floor, err := mount.Tmpfs(nil)
		require.NoError(t, err)
		defer unix.Close(floor)
		require.NoError(t, mount.Attach(floor, scratch))
		fd, err := o.Mapped(users, scratch)
		require.NoError(t, err)
		defer unix.Close(fd)
		for i := range o.Lower {
			var st unix.Stat_t
			require.NoError(t, unix.Fstatat(fd, fmt.Sprint(i), &st, 0))
			require.Equal(t, ids.First, st.Uid)
		}
		return os.Chmod(fmt.Sprintf("/proc/thread-self/fd/%d/2", fd), 0o644) // copies it up
	}))
	info, err := os.Stat(filepath.Join(o.Upper, "2"))
	require.NoError(t, err)
	require.EqualValues(t, ids.First, info.Sys().(*syscall.Stat_t).Uid)
	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	require.Empty(t, left, "mounts for it were its own thread's")
}
