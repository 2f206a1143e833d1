package volume

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
)

func directories(t *testing.T, fail failpoint.Hook) *Directories {
	t.Helper()
	return &Directories{
		dir:   filepath.Join(t.TempDir(), "local-volumes"),
		inUse: func(string, types.UID) (types.UID, error) { return "", nil },
		fail:  fail,
	}
}

// TestKilledSnapshots: wherever the agent is killed, repeating the call takes the snapshot, fills a volume from it,
// or removes it. An incomplete copy never has the final name, and in the end nothing is left.
func TestKilledSnapshots(t *testing.T) {
	for _, point := range []string{"snapshot.begun", "snapshot.copied", "snapshot.renamed", "fill.begun", "fill.copied"} {
		t.Run(point, func(t *testing.T) {
			killed := false
			d := directories(t, func(at string) error {
				if at == point && !killed {
					killed = true
					return os.ErrDeadlineExceeded
				}
				return nil
			})
			again := func(whole string, f func() error) {
				t.Helper()
				if err := f(); err != nil {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					require.NoDirExists(t, filepath.Join(d.dir, whole))
					require.NoError(t, f())
				}
			}
			path := filepath.Join(d.dir, "pv")
			require.NoError(t, d.make("pv", path, 1<<30))
			require.NoError(t, os.WriteFile(filepath.Join(path, "data"), []byte("then"), 0o640))
			again(".snapshots/s", func() error {
				s, err := d.TakeSnapshot(t.Context(), "s", "pv", 1<<30, nil)
				if err == nil {
					require.EqualValues(t, 1<<30, s.Size)
				}
				return err
			})
			require.NoError(t, os.WriteFile(filepath.Join(path, "data"), []byte("now"), 0o640))
			first, err := d.FindSnapshot("s")
			require.NoError(t, err)
			second, err := d.TakeSnapshot(t.Context(), "s", "pv", 2<<30, nil)
			require.NoError(t, err)
			require.Equal(t, first, second, "it is taken once")

			again("copy", func() error { return d.Fill(t.Context(), "copy", "snapshot/s", 1<<30, nil) })
			require.Equal(t, "then", read(t, filepath.Join(d.dir, "copy"), "data"))
			require.NoError(t, os.WriteFile(filepath.Join(d.dir, "copy", "data"), []byte("changed"), 0o640))
			require.NoError(t, d.Fill(t.Context(), "copy", "snapshot/s", 1<<30, nil))
			require.Equal(t, "changed", read(t, filepath.Join(d.dir, "copy"), "data"), "it is filled once")
			again("clone", func() error { return d.Fill(t.Context(), "clone", "volume/pv", 1<<30, nil) })
			require.Equal(t, "now", read(t, filepath.Join(d.dir, "clone"), "data"))

			again(".snapshots/s", func() error { return d.RemoveSnapshot(t.Context(), "s") })
			require.NoError(t, d.RemoveSnapshot(t.Context(), "s"), "it is gone")
			require.True(t, killed)
			for _, name := range []string{"pv", "copy", "clone"} {
				require.NoError(t, d.Remove(t.Context(), name))
			}
			left, err := os.ReadDir(d.dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestSnapshotsRefuse(t *testing.T) {
	copying, goOn := make(chan struct{}), make(chan struct{})
	d := directories(t, func(at string) error {
		if at == "snapshot.begun" {
			close(copying)
			<-goOn
		}
		return nil
	})
	for _, name := range []string{"", ".", "..", "../pv", "a/b", ".new-s"} {
		_, err := d.TakeSnapshot(t.Context(), name, "pv", 1, nil)
		require.ErrorContains(t, err, "invalid name of a volume", name)
		_, err = d.TakeSnapshot(t.Context(), "s", name, 1, nil)
		require.ErrorContains(t, err, "invalid name of a volume", name)
		require.ErrorContains(t, d.RemoveSnapshot(t.Context(), name), "invalid name of a volume", name)
		require.ErrorContains(t, d.Fill(t.Context(), name, "snapshot/s", 1, nil), "invalid name of a volume", name)
		require.Error(t, d.Fill(t.Context(), "pv", "volume/"+name, 1, nil), name)
	}
	require.ErrorIs(t, d.Fill(t.Context(), "pv", "snapshot/none", 1, nil), ErrNoSnapshot)
	require.ErrorContains(t, d.Fill(t.Context(), "pv", "tape/s", 1, nil), "invalid content")

	taken := make(chan error, 1)
	go func() {
		_, err := d.TakeSnapshot(t.Context(), "s", "pv", 1, nil)
		taken <- err
	}()
	<-copying
	_, err := d.TakeSnapshot(t.Context(), "s", "pv", 1, nil)
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorIs(t, d.Remove(t.Context(), "pv"), ErrBusy, "it is being copied")
	require.ErrorIs(t, d.RemoveSnapshot(t.Context(), "s"), ErrBusy)
	close(goOn)
	require.NoError(t, <-taken)
	require.NoError(t, d.Remove(t.Context(), "pv"))

	// A volume that was never used gives an empty copy with the mode of a new volume.
	require.NoError(t, d.Fill(t.Context(), "pv", "snapshot/s", 1, nil))
	info, err := os.Stat(filepath.Join(d.dir, "pv"))
	require.NoError(t, err)
	require.Equal(t, 0o777|fs.ModeDir, info.Mode())

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, d.Fill(ended, "other", "volume/pv", 1, nil), context.Canceled)
	require.NoError(t, d.Fill(t.Context(), "other", "volume/pv", 1, nil), "after a request that ended early")
}

// TestCopiesAtOnce: beyond the limit of concurrent copies, calls fail with ErrBusy; removals are not limited.
func TestCopiesAtOnce(t *testing.T) {
	copying, goOn := make(chan struct{}), make(chan struct{})
	d := directories(t, func(at string) error {
		if at == "snapshot.begun" {
			copying <- struct{}{}
			<-goOn
		}
		return nil
	})
	taken := make(chan error, copiesAtOnce)
	for i := range copiesAtOnce {
		go func() {
			_, err := d.TakeSnapshot(t.Context(), string(rune('a'+i)), "pv", 1, nil)
			taken <- err
		}()
		<-copying
	}
	_, err := d.TakeSnapshot(t.Context(), "c", "pv", 1, nil)
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorIs(t, d.Fill(t.Context(), "clone", "volume/pv", 1, nil), ErrBusy)
	require.NoError(t, d.RemoveSnapshot(t.Context(), "old"))
	close(goOn)
	for range copiesAtOnce {
		require.NoError(t, <-taken)
	}
	require.NoError(t, d.Fill(t.Context(), "clone", "volume/pv", 1, nil))
	_, err = d.TakeSnapshot(t.Context(), "a", "other", 1, nil)
	require.ErrorContains(t, err, `has snapshot "a" already, of volume "pv"`)
}
