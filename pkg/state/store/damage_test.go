package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// TestDamagedFiles: a start with damaged files fails at once, names the file, and says how to get the cluster back.
// etcd would wait for ever, end the process with a panic, or advise to look at the free space.
func TestDamagedFiles(t *testing.T) {
	database, log := filepath.Join("snap", "db"), filepath.Join("wal", "0000000000000000-0000000000000000.wal")
	for name, c := range map[string]struct {
		damage func(member string) error
		want   string
	}{
		"no log": {func(m string) error { return os.RemoveAll(filepath.Join(m, "wal")) }, "wal is missing"},
		"log": {
			func(m string) error { return overwrite(filepath.Join(m, log), 100) },
			"write-ahead log cannot be read: walpb: crc mismatch",
		},
		"database": {
			func(m string) error { return overwrite(filepath.Join(m, database), 0) },
			"db cannot be read: invalid database",
		},
		"pages": {
			func(m string) error { return overwrite(filepath.Join(m, database), 2*int64(os.Getpagesize())) },
			"db cannot be read: assertion failed: Page expected to be",
		},
		"short": {
			func(m string) error { return os.Truncate(filepath.Join(m, database), 20_000) },
			"db cannot be read: it has 20000 bytes, and should have",
		},
		"no database": {
			func(m string) error {
				return os.WriteFile(filepath.Join(m, "snap", "0000000000000001-0000000000000001.snap"), nil, 0o600)
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, stop := open(t, Config{Dir: dir, Volatile: true})
			for i := range 100 {
				_, err := s.Create(t.Context(), fmt.Sprintf("/registry/a/%d", i), bytes.Repeat([]byte("v"), 1000), 0)
				require.NoError(t, err)
			}
			stop()
			member := filepath.Join(dir, Directory, "member")
			require.NoError(t, c.damage(member))
			if c.want == "" { // a snapshot says that the log is not complete
				require.NoError(t, s.checkFiles())
				require.NoError(t, os.Remove(filepath.Join(member, database)))
				require.ErrorContains(t, s.checkFiles(), "db is missing or empty")
				return
			}
			again, err := New(Config{Dir: dir, Volatile: true, Logger: slog.New(slog.DiscardHandler),
				Snapshot: func() string { return "/last" }})
			require.NoError(t, err)
			err = again.Run(t.Context())
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "coracle snapshot restore /last --replace")
		})
	}
}

// overwrite fills a file with garbage from an offset on.
func overwrite(name string, from int64) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	copy(data[from:], bytes.Repeat([]byte{0xa5}, len(data)))
	return os.WriteFile(name, data, 0o600)
}

func BenchmarkWalk(b *testing.B) {
	file := filepath.Join(b.TempDir(), "db")
	db, err := bolt.Open(file, 0o600, &bolt.Options{NoSync: true})
	require.NoError(b, err)
	require.NoError(b, db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucket([]byte("key"))
		for i := 0; err == nil && i < 50_000; i++ {
			err = bucket.Put(fmt.Appendf(nil, "%09d", i), bytes.Repeat([]byte("v"), 1500))
		}
		return err
	}))
	require.NoError(b, db.Close())
	info, err := os.Stat(file)
	require.NoError(b, err)
	b.SetBytes(info.Size())
	for b.Loop() {
		_, err := walk(file, info.Size())
		require.NoError(b, err)
	}
}
