package socket

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A Unix socket is private when it appears, not only after a chmod.
func TestUnixSocketsArePrivate(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(t.TempDir(), "sock")
	for range 2 { // the second replaces what a killed process left
		l, err := ListenUnix(path)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		t.Cleanup(func() { _ = l.Close() })
	}
}
