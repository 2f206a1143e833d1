package server

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStartWaits: a start waits for a stop or delete, also for one that removes the directory, and for another start.
func TestStartWaits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	release, err := endStart(t.Context(), dir, nil)
	require.NoError(t, err)
	release()
	require.NoDirExists(t, dir, "there is nothing to end")

	for name, removes := range map[string]bool{"stop": false, "delete": true} {
		t.Run(name, func(t *testing.T) {
			// Its own directory: the waiter whose context ends below takes the lock for a moment once it is free.
			dir := filepath.Join(t.TempDir(), "data")
			require.NoError(t, os.MkdirAll(dir, 0o700))
			first, err := endStart(t.Context(), dir, nil)
			require.NoError(t, err)
			second, err := endStart(t.Context(), dir, nil)
			require.NoError(t, err, "they do not exclude each other")

			ctx, cancel := context.WithCancel(t.Context())
			_, err = lockForStart(ctx, dir, cancel)
			require.ErrorIs(t, err, context.Canceled)

			waits, got := make(chan struct{}), make(chan error, 1)
			go func() {
				release, err := lockForStart(t.Context(), dir, func() { close(waits) })
				if err == nil {
					require.Equal(t, os.Getpid(), holderOf(dir, startLock))
					release()
				}
				got <- err
			}()
			<-waits
			if removes {
				require.NoError(t, os.RemoveAll(dir))
			}
			first()
			second()
			require.NoError(t, <-got)
		})
	}
}
