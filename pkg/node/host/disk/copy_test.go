package disk

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func stat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	require.NoError(t, unix.Lstat(path, &st))
	return st
}

// needsRoom skips a test if the temporary file system is so full that Copy would fail.
func needsRoom(t *testing.T) {
	t.Helper()
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(t.TempDir(), &fs))
	if fs.Bavail < fs.Blocks/KeepPart+fs.Blocks/100 || fs.Ffree < fs.Files/KeepPart+fs.Files/100 {
		t.Skip("less than a tenth of the file system is free: nothing would be copied")
	}
}

// TestCopy checks that a copy has everything that a directory can contain.
func TestCopy(t *testing.T) {
	needsRoom(t)
	from, to := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(from, name) }
	require.NoError(t, os.MkdirAll(at("dir/below"), 0o755))
	require.NoError(t, os.WriteFile(at("dir/below/file"), bytes.Repeat([]byte("0123456789"), 100_000), 0o640))
	require.NoError(t, os.Link(at("dir/below/file"), at("link")))
	require.NoError(t, os.Symlink("/etc/passwd", at("outside")))
	require.NoError(t, unix.Mkfifo(at("pipe"), 0o604))
	require.NoError(t, os.WriteFile(at("owned"), []byte("x"), 0o600))
	require.NoError(t, os.Chown(at("owned"), 4242, 4343))
	require.NoError(t, os.Chmod(at("owned"), os.ModeSetuid|0o711))
	require.NoError(t, unix.Lsetxattr(at("owned"), "user.note", []byte("kept"), 0))
	require.NoError(t, os.Chmod(at("dir"), 0o1770))
	old := time.Unix(1_600_000_000, 5)
	require.NoError(t, os.Chtimes(at("dir"), old, old))
	require.NoError(t, os.WriteFile(at("sparse"), nil, 0o600))
	require.NoError(t, os.Truncate(at("sparse"), 1<<30))
	f, err := os.OpenFile(at("sparse"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("in the middle"), 1<<29)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	before := openFiles(t)
	require.NoError(t, Copy(t.Context(), from, to, nil))
	require.Equal(t, before, openFiles(t))
	of := func(name string) string { return filepath.Join(to, name) }
	data, err := os.ReadFile(of("dir/below/file"))
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte("0123456789"), 100_000), data)
	require.Equal(t, stat(t, of("link")).Ino, stat(t, of("dir/below/file")).Ino)
	target, err := os.Readlink(of("outside"))
	require.NoError(t, err)
	require.Equal(t, "/etc/passwd", target)
	for _, name := range []string{"", "dir", "dir/below", "dir/below/file", "pipe", "owned", "sparse"} {
		was, is := stat(t, at(name)), stat(t, of(name))
		require.Equal(t, []any{was.Mode, was.Uid, was.Gid, was.Mtim}, []any{is.Mode, is.Uid, is.Gid, is.Mtim}, name)
	}
	note := make([]byte, 10)
	n, err := unix.Lgetxattr(of("owned"), "user.note", note)
	require.NoError(t, err)
	require.Equal(t, "kept", string(note[:n]))
	require.EqualValues(t, 1<<30, stat(t, of("sparse")).Size)
	require.Less(t, stat(t, of("sparse")).Blocks*512, int64(1<<20), "holes are not filled")
	f, err = os.Open(of("sparse"))
	require.NoError(t, err)
	middle := make([]byte, 13)
	_, err = f.ReadAt(middle, 1<<29)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, "in the middle", string(middle))
}

// TestCopyWhileItChanges checks that changes by a container during the copy can neither prolong it forever nor lead
// it out of the volume.
func TestCopyWhileItChanges(t *testing.T) {
	needsRoom(t)
	from, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(from, "still"), []byte("here"), 0o600))
	name := filepath.Join(from, "changing")
	var done atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; !done.Load(); i++ {
			_ = os.RemoveAll(name)
			switch i % 5 {
			case 0:
				_ = os.Symlink(filepath.Join(outside, "secret"), name)
			case 1:
				_ = unix.Mkfifo(name, 0o600)
			case 2:
				_ = os.WriteFile(name, []byte("file"), 0o600)
			case 3:
				_ = os.Symlink(outside, name)
			case 4:
				_ = os.Mkdir(name, 0o700)
			}
		}
	}()
	for range 200 {
		to := t.TempDir()
		if err := Copy(t.Context(), from, to, nil); err != nil {
			require.ErrorIs(t, err, errChanged)
			continue
		}
		data, err := os.ReadFile(filepath.Join(to, "still"))
		require.NoError(t, err)
		require.Equal(t, "here", string(data))
		if info, err := os.Lstat(filepath.Join(to, "changing")); err == nil && info.Mode().IsRegular() {
			data, err := os.ReadFile(filepath.Join(to, "changing"))
			require.NoError(t, err)
			require.NotEqual(t, "secret", string(data))
		}
	}
	done.Store(true)
	<-ended
}

func TestCopyRefuses(t *testing.T) {
	needsRoom(t)
	deep := t.TempDir()
	nest(t, deep, "d", maxDepth+5)
	err := Copy(t.Context(), deep, t.TempDir(), nil)
	require.ErrorContains(t, err, "nested deeper than 250")
	require.Less(t, len(err.Error()), 1000, "the path is there once")
	require.NoError(t, RemoveAll(t.Context(), filepath.Join(deep, "d")))

	mounted := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(mounted, "mnt"), 0o700))
	require.NoError(t, unix.Mount("tmpfs", filepath.Join(mounted, "mnt"), "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(mounted, "mnt"), unix.MNT_DETACH) })
	require.ErrorContains(t, Copy(t.Context(), mounted, t.TempDir(), nil), "mnt: is a mount point")

	small := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	full := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(full, name), make([]byte, 504<<10), 0o600))
	}
	require.ErrorIs(t, Copy(t.Context(), full, small, nil), ErrFull)

	few := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", few, "tmpfs", 0, "nr_inodes=20"))
	t.Cleanup(func() { _ = unix.Unmount(few, unix.MNT_DETACH) })
	many := t.TempDir()
	for i := range 30 {
		require.NoError(t, os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600))
	}
	require.ErrorIs(t, Copy(t.Context(), many, few, nil), ErrFull)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Copy(ended, full, t.TempDir(), nil), context.Canceled)
	require.ErrorIs(t, Copy(t.Context(), filepath.Join(full, "none"), t.TempDir(), nil), os.ErrNotExist)
	require.ErrorIs(t, Copy(t.Context(), filepath.Join(full, "a"), t.TempDir(), nil), unix.ENOTDIR)
}

// TestCopyOfHostileLinks checks that paths of hard-linked files use bounded memory, however deeply nested. Files
// beyond the limit are copied once per link.
func TestCopyOfHostileLinks(t *testing.T) {
	needsRoom(t)
	long := strings.Repeat("long", 60)
	for name, tt := range map[string]struct {
		depth, linked, kept int
	}{"kept": {1, maxDeferred - 1000, 1}, "too many": {1, maxDeferred - 10, 0}, "too long": {20, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			from, to := t.TempDir(), t.TempDir()
			nest(t, from, long, tt.depth)
			root, err := os.OpenRoot(from)
			require.NoError(t, err)
			defer root.Close()
			deep := strings.Repeat(long+"/", tt.depth)
			require.NoError(t, root.Link(deep+"f", deep+"g"))
			src, err := unix.Open(from, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			require.NoError(t, err)
			dst, err := unix.Open(to, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			require.NoError(t, err)
			defer unix.Close(dst)
			c := &copier{ctx: t.Context(), root: dst, links: map[link]string{}, linked: tt.linked}
			st := stat(t, from)
			require.NoError(t, c.directory(src, dst, &st, "", 0))
			require.Len(t, c.links, tt.kept)
			copied, err := os.OpenRoot(to)
			require.NoError(t, err)
			defer copied.Close()
			f, err := copied.Stat(deep + "f")
			require.NoError(t, err)
			g, err := copied.Stat(deep + "g")
			require.NoError(t, err)
			require.Equal(t, tt.kept == 1, os.SameFile(f, g))
			require.EqualValues(t, 4096, g.Size())
		})
	}
}
