package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOf(t *testing.T) {
	dir := t.TempDir()
	empty, err := Of(t.Context(), dir)
	require.NoError(t, err)
	require.EqualValues(t, 1, empty.Inodes)

	outside := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(outside, make([]byte, 1<<20), 0o600))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	file := filepath.Join(dir, "sub", "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 300<<10), 0o600))
	require.NoError(t, os.Link(file, filepath.Join(dir, "again")))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1<<30))
	require.NoError(t, sparse.Close())

	u, err := Of(t.Context(), dir)
	require.NoError(t, err)
	require.EqualValues(t, 5, u.Inodes)
	require.GreaterOrEqual(t, u.Bytes, uint64(300<<10))
	require.Less(t, u.Bytes, uint64(400<<10))

	none, err := Of(t.Context(), filepath.Join(dir, "none"))
	require.NoError(t, err)
	require.Zero(t, none)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Of(ended, dir)
	require.ErrorIs(t, err, context.Canceled)
}

// TestRemoveAllOfFixedFiles checks that RemoveAll removes files whose attributes forbid it even to root, and that it
// does not enter mounts.
func TestRemoveAllOfFixedFiles(t *testing.T) {
	fix := func(path string, flag int) {
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if err == nil {
			err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|flag)
		}
		if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) {
			t.Skipf("attributes cannot be set here: %v", err)
		}
		require.NoError(t, err)
	}
	dir := filepath.Join(t.TempDir(), "dir")
	deep := filepath.Join(dir, "a", "b")
	require.NoError(t, os.MkdirAll(deep, 0o700))
	nest(t, deep, "d", maxOpen)
	for _, name := range []string{filepath.Join(dir, "f"), filepath.Join(deep, "f")} {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		fix(name, immutable)
	}
	require.NoError(t, os.Symlink("/", filepath.Join(deep, "link")))
	require.NoError(t, unix.Mkfifo(filepath.Join(deep, "pipe"), 0o600))
	fix(filepath.Join(deep, strings.Repeat("d/", maxOpen-4)), immutable) // the directory that is moved to the top
	fix(deep, appendOnly)
	fix(filepath.Join(dir, "a"), immutable)
	fix(dir, immutable|appendOnly)

	mounted := filepath.Join(t.TempDir(), "dir")
	point := filepath.Join(mounted, "point")
	require.NoError(t, os.MkdirAll(point, 0o700))
	require.NoError(t, unix.Mount("tmpfs", point, "tmpfs", 0, ""))
	defer func() { require.NoError(t, unix.Unmount(point, 0)) }()
	kept := filepath.Join(point, "kept")
	require.NoError(t, os.WriteFile(kept, nil, 0o600))

	require.NoError(t, RemoveAll(t.Context(), dir))
	require.NoDirExists(t, dir)
	require.ErrorIs(t, RemoveAll(t.Context(), mounted), unix.EBUSY)
	require.FileExists(t, kept)
}
