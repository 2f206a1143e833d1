package disk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// nest creates nested directories, each with a file, as a container can with mkdir and cd: the path may exceed
// PATH_MAX.
func nest(t *testing.T, dir, name string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	for range depth {
		require.NoError(t, unix.Mkdirat(at, name, 0o700))
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))
		at = next
		f, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = unix.Write(f, make([]byte, 4096))
		require.NoError(t, err)
		require.NoError(t, unix.Close(f))
	}
	require.NoError(t, unix.Close(at))
}

func openFiles(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(l)
}

// TestDeepDirectories measures and removes directories of any depth.
func TestDeepDirectories(t *testing.T) {
	for _, tt := range []struct {
		name    string
		depth   int
		endless bool
	}{
		{"d", 1, false}, {"d", maxOpen, false}, {"d", 3 * maxOpen, false}, {strings.Repeat("long", 60), 100, false},
		{"d", 1000, false},
		{strings.Repeat("long", 60), 400, true},
	} {
		t.Run(fmt.Sprint(len(tt.name), " ", tt.depth), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "dir")
			require.NoError(t, os.Mkdir(dir, 0o700))
			nest(t, dir, tt.name, tt.depth)
			before := openFiles(t)
			u, err := Of(t.Context(), dir)
			require.NoError(t, err)
			if tt.endless {
				require.GreaterOrEqual(t, u.Bytes, uint64(Endless))
			} else {
				require.EqualValues(t, 1+2*tt.depth, u.Inodes)
				require.GreaterOrEqual(t, u.Bytes, uint64(4096*tt.depth))
				require.Less(t, u.Bytes, uint64(Endless))
			}
			require.NoError(t, RemoveAll(t.Context(), dir))
			require.NoDirExists(t, dir)
			require.Equal(t, before, openFiles(t))
		})
	}
}

func TestRemoveAll(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	rapid.Check(t, func(t *rapid.T) {
		top, err := os.MkdirTemp(outside, "top")
		require.NoError(t, err)
		dir := filepath.Join(top, "dir")
		require.NoError(t, os.Mkdir(dir, 0o700))
		for i := range rapid.IntRange(0, 30).Draw(t, "files") {
			at := dir
			for range rapid.IntRange(0, 5).Draw(t, "depth") {
				at = filepath.Join(at, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "in"))
			}
			require.NoError(t, os.MkdirAll(at, 0o700))
			switch name := filepath.Join(at, fmt.Sprint("f", i)); rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				require.NoError(t, os.WriteFile(name, nil, 0))
			case 1:
				require.NoError(t, os.Symlink(outside, name))
			case 2:
				require.NoError(t, unix.Mkfifo(name, 0o600))
			}
		}
		require.NoError(t, RemoveAll(context.Background(), dir))
		_, err = os.Lstat(dir)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.NoError(t, os.Remove(top))
	})
	require.FileExists(t, filepath.Join(outside, "kept"))

	many := filepath.Join(t.TempDir(), "many")
	require.NoError(t, os.Mkdir(many, 0o700))
	for i := range 3 * batch {
		require.NoError(t, os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600))
	}
	u, err := Of(t.Context(), many)
	require.NoError(t, err)
	require.EqualValues(t, 1+3*batch, u.Inodes)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, RemoveAll(ended, many), context.Canceled)
	require.NoError(t, RemoveAll(t.Context(), many))
	require.NoError(t, RemoveAll(t.Context(), many), "it is gone")
	require.NoError(t, RemoveAll(t.Context(), filepath.Join(many, "x", "y")))
}
