package volume

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

func TestOpenInside(t *testing.T) {
	dir := t.TempDir()
	root, secret := filepath.Join(dir, "volume"), filepath.Join(dir, "secret")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sub", "deep"), 0o755))
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, "file"), []byte("text"), 0o644))
	for link, to := range map[string]string{
		"absolute": "/file", "relative": "file", "sub/up": "../file", "sub/deep/links": "../up", "sub/all": "/sub/deep",
		"out": secret, "climbs": "../../../../../../../.." + secret, "magic": "/proc/self/root" + secret, "loop": "loop",
		"gone": "nothing",
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(root, link)))
	}
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o644))
	// a link that a container may make
	require.NoError(t, unix.Mknod(filepath.Join(root, "device"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))))
	for path, want := range map[string]error{
		"file": nil, "./sub/../file": nil, "absolute": nil, "relative": nil, "sub/up": nil, "sub/deep/links": nil,
		"sub/all/links": nil, "../../file": nil,
		"out": os.ErrNotExist, "climbs": os.ErrNotExist, "magic": os.ErrNotExist, "gone": os.ErrNotExist,
		"none":       os.ErrNotExist,
		"file/below": unix.ENOTDIR, "loop": unix.ELOOP,
		"fifo": bounded.ErrNotRegular, "device": bounded.ErrNotRegular, "sub": bounded.ErrNotRegular,
		".": bounded.ErrNotRegular,
	} {
		f, err := OpenInside(root, path)
		require.ErrorIs(t, err, want, path)
		if want == nil {
			data, err := io.ReadAll(f)
			require.NoError(t, errors.Join(err, f.Close()))
			require.Equal(t, "text", string(data), path)
		}
	}
	require.NoError(t, unix.Mount("tmpfs", filepath.Join(root, "sub"), "tmpfs", 0, ""))
	defer func() { require.NoError(t, unix.Unmount(filepath.Join(root, "sub"), 0)) }()
	require.NoError(t, os.WriteFile(filepath.Join(root, "sub", "file"), nil, 0o644))
	_, err := OpenInside(root, "sub/file")
	require.ErrorIs(t, err, unix.EXDEV, "a file system that somebody mounted there may not answer")
}

// A container may replace a directory by a link and back at any rate: a file outside is never opened.
func TestOpenInsideWhileLinksAreSwapped(t *testing.T) {
	dir := t.TempDir()
	root, outside := filepath.Join(dir, "volume"), filepath.Join(dir, "outside")
	for _, d := range []string{filepath.Join(root, "dir"), outside} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "dir", "file"), []byte("inside"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), []byte("outside"), 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "link")))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, "dir"), unix.AT_FDCWD, filepath.Join(root, "link"),
				unix.RENAME_EXCHANGE); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	found := 0
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end) || found == 0; {
		f, err := OpenInside(root, "dir/file")
		if err != nil {
			continue
		}
		data, err := io.ReadAll(f)
		require.NoError(t, errors.Join(err, f.Close()))
		require.Equal(t, "inside", string(data))
		found++
	}
	cancel()
	require.NoError(t, <-done)
}
