package server

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLockStart checks that commands on one data directory wait for each other, also if the previous one removed
// the directory.
func TestLockStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	_, err := lockStart(t.Context(), dir, toEnd, nil)
	require.ErrorIs(t, err, errNoDataDir)

	for _, removed := range []bool{false, true} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
		release, err := lockStart(t.Context(), dir, toStart, func(int, string) { t.Error("nothing holds it") })
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		_, err = lockStart(ctx, dir, toEnd, func(pid int, does string) {
			require.Equal(t, os.Getpid(), pid)
			require.Equal(t, toStart, does)
			cancel()
		})
		require.ErrorIs(t, err, context.Canceled)

		waits, got := make(chan struct{}), make(chan error, 1)
		go func() {
			second, err := lockStart(t.Context(), dir, toEnd, func(int, string) { close(waits) })
			if err == nil {
				second()
			}
			got <- err
		}()
		<-waits
		if removed {
			require.NoError(t, os.RemoveAll(dir))
		}
		release()
		if removed {
			require.ErrorIs(t, <-got, errNoDataDir)
			continue
		}
		require.NoError(t, <-got)
		require.NoFileExists(t, filepath.Join(dir, startLock))
	}
}
