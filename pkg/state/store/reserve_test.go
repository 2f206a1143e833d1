package store

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReserve: when another program has filled the disk, updates and deletions still succeed, creates are refused, and
// the reserve is taken again when there is space.
func TestReserve(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	const size = 128 << 20
	image, mount := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, size))
	for _, c := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, mount}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("this machine cannot mount an image: %v: %s", err, out)
		}
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mount, 0)) })
	dir := filepath.Join(mount, "store")
	s, _ := open(t, Config{Dir: dir}) // stopped before the file system is unmounted
	ctx := t.Context()
	rev, err := s.Create(ctx, "/registry/a", []byte("x"), 0)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, reserveFile))

	filler := filepath.Join(mount, "filler")
	fill(t, filler)
	look := func() { s.space.looked.Store(time.Now().Add(-time.Minute).UnixNano()) }
	look()
	rev, err = s.Update(ctx, "/registry/a", []byte("deleting"), rev, 0)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, reserveFile))
	_, err = s.Create(ctx, "/registry/b", []byte("x"), 0)
	require.ErrorIs(t, err, ErrFull)
	_, err = s.Delete(ctx, "/registry/a", rev)
	require.NoError(t, err)
	require.True(t, MakeRoom(dir, 1<<20))

	fill(t, filler+"2") // whatever fills the disk takes the reserve too
	look()
	_, err = s.Update(ctx, "/registry/a", []byte("x"), rev, 0)
	require.ErrorIs(t, err, ErrFull)
	require.False(t, MakeRoom(dir, 1<<20))

	require.NoError(t, os.Remove(filler))
	look()
	_, err = s.Create(ctx, "/registry/b", []byte("x"), 0)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, reserveFile))
}

// fill writes a file until the file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	block := make([]byte, 1<<20)
	for len(block) > 0 {
		if _, err := f.Write(block); err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			block = block[:len(block)/2]
		}
	}
}
