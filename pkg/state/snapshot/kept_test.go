package snapshot

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKeep: the newest snapshots are kept, readable only by their owner; other files stay; neither a write that fails
// nor a killed process leaves a part of a snapshot.
func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	now := time.Date(2026, 11, 27, 6, 0, 0, 0, time.UTC)
	write := func(to io.Writer) error { _, err := io.WriteString(to, "archive"); return err }
	names := func() (names []string) {
		list, err := List(dir, now)
		require.NoError(t, err)
		for _, s := range list {
			names = append(names, s.Name)
		}
		return names
	}
	require.Empty(t, names())
	require.NoError(t, RemoveUnfinished(dir))
	newest, err := Newest(dir)
	require.NoError(t, err)
	require.Empty(t, newest)

	require.NoError(t, Keep(dir, now.Add(time.Hour), 1, 2, write), "by a clock that was wrong")
	mine := filepath.Join(dir, "mine.snapshot")
	require.NoError(t, os.WriteFile(mine, nil, 0o600))
	for i := range 3 {
		now = now.Add(time.Minute)
		require.NoError(t, Keep(dir, now, int64(100-i), 2, write))
	}
	require.Equal(t, []string{"20261127-060300-98.snapshot", "20261127-060200-99.snapshot"}, names())
	require.FileExists(t, mine)
	newest, err = Newest(dir)
	require.NoError(t, err)
	info, err := os.Stat(newest)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	require.ErrorContains(t, Keep(dir, now.Add(time.Minute), 101, 2, func(to io.Writer) error {
		return errors.Join(write(to), errors.New("the disk is full"))
	}), "the disk is full")
	killed := filepath.Join(dir, "20261127-060500-102.snapshot.new")
	require.NoError(t, os.WriteFile(killed, []byte("half"), 0o600))
	require.Len(t, names(), 2)
	require.NoError(t, RemoveUnfinished(dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "two snapshots and mine")
}
