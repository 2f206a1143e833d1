package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// TestAutomaticSnapshots: a snapshot is taken each hour, if something was written; a restart does not delay it. A
// failure is a warning until the next success.
func TestAutomaticSnapshots(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var taken, asked []time.Duration
		began, revision, full := time.Now(), int64(7), error(nil)
		var mu sync.Mutex // the bubble's clock does not order the test's accesses for the race detector
		locked := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }
		sleep := func(d time.Duration) (list []time.Duration) {
			time.Sleep(d)
			synctest.Wait()
			locked(func() { list = slices.Clone(taken) })
			return list
		}
		a := func() *autoSnapshots {
			return &autoSnapshots{
				Snapshots: config.Default().Snapshots,
				dir:       dir,
				stats: func() store.Stats {
					mu.Lock()
					defer mu.Unlock()
					return store.Stats{Revision: revision, SizeBytes: 5, DiskMinFreeBytes: 3}
				},
				room: func(least, size int64) error {
					require.Equal(t, []int64{3, 5}, []int64{least, size})
					mu.Lock()
					defer mu.Unlock()
					asked = append(asked, time.Since(began))
					return full
				},
				save: func(_ context.Context, to io.Writer) error {
					locked(func() { taken = append(taken, time.Since(began)) })
					_, err := io.WriteString(to, "archive")
					return err
				},
				log: slog.New(slog.DiscardHandler),
			}
		}
		at := func(minutes ...time.Duration) (list []time.Duration) {
			for _, m := range minutes {
				list = append(list, m*time.Minute)
			}
			return list
		}
		first := a()
		stop := runtest.Start(t, first)
		require.Equal(t, at(5), sleep(6*time.Minute))
		require.Equal(t, at(5), sleep(2*time.Hour), "nothing was written")
		stop()
		locked(func() { revision++ })
		second := a()
		stop = runtest.Start(t, second) // the newest is two hours old
		require.Equal(t, at(5, 131), sleep(6*time.Minute))
		stop()
		locked(func() { revision++ })
		third := a()
		stop = runtest.Start(t, third)
		defer stop()
		require.Equal(t, at(5, 131), sleep(50*time.Minute))
		locked(func() { full, asked = errors.New("the disk is full"), nil })
		sleep(20 * time.Minute) // at 202 minutes
		require.Contains(t, third.Warning(), "could not take an automatic snapshot: the disk is full")
		locked(func() {
			require.Equal(t, at(191, 196, 201), asked)
			full = nil
		})
		require.Equal(t, at(5, 131, 206), sleep(5*time.Minute))
		require.Empty(t, third.Warning())
	})
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3)
	require.Empty(t, (*autoSnapshots)(nil).Warning())
}

// TestSnapshotRoom: a snapshot leaves what the store needs, and no node evicts pods for its sake.
func TestSnapshotRoom(t *testing.T) {
	c := config.Default()
	c.DataDir = t.TempDir()
	c.EvictionHard = []string{"nodefs.available<0%"}
	require.NoError(t, snapshotRoom(c, 1<<20, 1<<20))
	require.ErrorContains(t, snapshotRoom(c, 1<<60, 1<<20), "set --snapshot-interval=0")
	require.ErrorContains(t, snapshotRoom(c, 1<<20, 1<<60), "free some space")
	c.EvictionHard = []string{"nodefs.available<99.9999%"}
	require.ErrorContains(t, snapshotRoom(c, 1<<20, 1<<20), "free some space")
}

// TestErrorsNameTheNewestSnapshot: a server without its keys names the file to restore.
func TestErrorsNameTheNewestSnapshot(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, storeDir, store.Directory), 0o700))
	require.ErrorContains(t, checkLost(dir), "`coracle snapshot restore FILE --replace`")
	file := filepath.Join(snapshotDir(dir), "20261127-060000-7.snapshot")
	require.NoError(t, os.MkdirAll(snapshotDir(dir), 0o700))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, checkLost(dir), "`coracle snapshot restore "+file+" --replace`")
	for arg, want := range map[string]string{"": file, filepath.Base(file): file, "other": "other", file: file} {
		got, err := SnapshotFile(dir, slices.DeleteFunc([]string{arg}, func(a string) bool { return a == "" }))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
