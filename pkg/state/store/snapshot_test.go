package store

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A store restored from an export has everything acknowledged before it, and revisions that no client has seen.
func TestExportAndRestore(t *testing.T) {
	ctx := t.Context()
	s, stop := open(t, Config{Dir: t.TempDir()})
	for i := range 500 {
		_, err := s.Create(ctx, fmt.Sprintf("/registry/pods/a/%03d", i), []byte(fmt.Sprint(i)), 0)
		require.NoError(t, err)
	}
	kv, err := s.Get(ctx, "/registry/pods/a/000")
	require.NoError(t, err)
	_, err = s.Delete(ctx, kv.Key, kv.Revision)
	require.NoError(t, err)
	before, err := s.Revision(ctx)
	require.NoError(t, err)

	file := filepath.Join(t.TempDir(), "db")
	require.NoError(t, s.Export(func(revision, size int64, database io.WriterTo) error {
		require.Equal(t, before, revision)
		_, err := s.Create(ctx, "/registry/pods/a/later", []byte("x"), 0)
		require.NoError(t, err, "writes go on")
		f, err := os.Create(file)
		require.NoError(t, err)
		defer f.Close()
		n, err := database.WriteTo(f)
		require.Equal(t, size, n)
		return err
	}))
	stop()
	require.ErrorIs(t, s.Export(nil), ErrUnavailable)

	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	require.NoError(t, Restore(file, dir, log))
	require.ErrorContains(t, Restore(file, dir, log), "not empty", "a store that is there stays")
	for range 2 { // the second start reads what the first one left
		r, stop := open(t, Config{Dir: dir})
		after, err := r.Revision(ctx)
		require.NoError(t, err)
		require.Greater(t, after, before+restoredRevisions-1)
		_, err = r.Get(ctx, "/registry/pods/a/000")
		require.ErrorIs(t, err, ErrNotFound)
		for i := 1; i < 500; i++ {
			kv, err := r.Get(ctx, fmt.Sprintf("/registry/pods/a/%03d", i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), string(kv.Value))
		}
		_, err = r.Get(ctx, "/registry/pods/a/later")
		require.ErrorIs(t, err, ErrNotFound)
		kv, err := r.Get(ctx, "/registry/pods/a/001")
		require.NoError(t, err)
		_, err = r.Update(ctx, kv.Key, []byte("1"), kv.Revision, 0)
		require.NoError(t, err)
		stop()
	}
}

func TestRestoreRefusesGarbage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "db")
	for _, text := range []string{"", "no database", string(make([]byte, 1<<20))} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Error(t, Restore(file, t.TempDir(), slog.New(slog.DiscardHandler)))
	}
	require.Error(t, Restore(filepath.Join(t.TempDir(), "missing"), t.TempDir(), slog.New(slog.DiscardHandler)))
}
