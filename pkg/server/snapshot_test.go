package server

import (
	"bytes"
	"crypto/sha256"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/node/agent"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// TestInstallIsRepeatable checks that, after a crash between any two renames, the old cluster's parts are kept, no
// process starts, and the next attempt completes the restore.
func TestInstallIsRepeatable(t *testing.T) {
	fill := func(root, content string) {
		for _, name := range []string{"pki/ca.key", "encryption/config.yaml", "store/etcd/member/snap/db"} {
			require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
		}
	}
	read := func(name string) string {
		raw, err := os.ReadFile(name)
		if err != nil {
			return ""
		}
		return string(raw)
	}
	// unpacked creates the state in which RestoreSnapshot calls install.
	unpacked := func(data string) string {
		dir := filepath.Join(data, restoring)
		require.NoError(t, os.RemoveAll(dir))
		fill(filepath.Join(dir, "parts"), "new")
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "store"), 0o700))
		require.NoError(t, os.Rename(filepath.Join(dir, "parts", "store", "etcd"), filepath.Join(dir, "store", "etcd")))
		return dir
	}
	for _, last := range []string{"pki", "encryption", "store/etcd"} {
		data := t.TempDir()
		fill(data, "old")
		dir := unpacked(data)
		first := filepath.Join(data, "replaced-1")
		// install fails at the part last, because a directory is in the place of the old part.
		from := filepath.Join(dir, "parts", last)
		if last == "store/etcd" {
			from = filepath.Join(dir, last)
		}
		require.NoError(t, os.MkdirAll(filepath.Join(first, last, "in the way"), 0o700))
		require.Error(t, install(data, dir, first), from)
		require.ErrorContains(t, checkRestored(data), "repeat `coracle snapshot restore`")

		second := filepath.Join(data, "replaced-2")
		require.NoError(t, install(data, unpacked(data), second))
		require.NoError(t, checkRestored(data))
		for _, name := range []string{"pki/ca.key", "encryption/config.yaml", "store/etcd/member/snap/db"} {
			require.Equal(t, "new", read(filepath.Join(data, name)))
			require.Contains(t, []string{read(filepath.Join(first, name)), read(filepath.Join(second, name))}, "old",
				"%s of the old cluster is kept", name)
		}
	}
}

// TestABadArchiveAfterAnInterruptedRestore checks that no server starts with the keys of one cluster and the objects of
// another: the first restore was killed between its renames, and the second one gets a bad archive.
func TestABadArchiveAfterAnInterruptedRestore(t *testing.T) {
	var c config.Config
	c.DataDir, c.RunDir = t.TempDir(), t.TempDir()
	for _, name := range []string{
		keyDir, filepath.Join(storeDir, store.Directory), filepath.Join(restoring, "parts", "x"),
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(c.DataDir, name), 0o700))
	}
	for range 2 {
		_, _, err := RestoreSnapshot(t.Context(), c, bytes.NewReader([]byte("bad")), false)
		require.ErrorContains(t, err, "not a snapshot")
		require.ErrorContains(t, checkRestored(c.DataDir), "repeat `coracle snapshot restore`")
	}
}

// TestLostKeysOrObjects checks that a start makes neither new keys for a cluster whose keys are gone, since all nodes
// would be refused, nor an empty store where snapshots of the lost one are.
func TestLostKeysOrObjects(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, checkLost(dir), "a new data directory")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, storeDir, store.Directory), 0o700))
	require.ErrorContains(t, checkLost(dir), pkiDir(dir)+" is missing, with the keys of the cluster")
	require.NoError(t, os.MkdirAll(pkiDir(dir), 0o700))
	require.NoError(t, checkLost(dir))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, storeDir)))
	require.NoError(t, checkLost(dir), "the first start was killed early")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "agent"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "agent", agent.RangeFile), nil, 0o600))
	require.ErrorContains(t, checkLost(dir), "`coracle snapshot restore FILE --replace`")
	require.NoError(t, os.MkdirAll(snapshotDir(dir), 0o700))
	file := filepath.Join(snapshotDir(dir), "20261128-060000-7.snapshot")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, checkLost(dir), "store is missing, with the objects of the cluster")
	require.ErrorContains(t, checkLost(dir), "`coracle snapshot restore "+file+" --replace`")
}

// TestRestoreWithTheRunDirOfAnotherCluster checks that the refusal names the other cluster.
func TestRestoreWithTheRunDirOfAnotherCluster(t *testing.T) {
	c := config.Default()
	c.DataDir, c.RunDir = t.TempDir(), t.TempDir()
	runtest.Start(t, socket.NewServer(c.RunDir, elsewhere{dir: "/elsewhere"}))
	_, _, err := RestoreSnapshot(t.Context(), c, bytes.NewReader(nil), false)
	require.ErrorContains(t, err, c.RunDir+" is the run directory of the cluster in /elsewhere")
}

// TestRestoreOfEtcd checks that the objects of an `etcdctl snapshot save` file become a cluster with its own keys,
// and that a damaged file changes nothing.
func TestRestoreOfEtcd(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	opened := func(dir string) (*store.Store, func()) {
		s, err := store.New(store.Config{Dir: filepath.Join(dir, storeDir), Logger: quiet})
		require.NoError(t, err)
		return s, runtest.Start(t, s)
	}
	s, stop := opened(t.TempDir())
	_, err := s.Create(t.Context(), "/registry/configmaps/default/a", []byte("theirs"), 0)
	require.NoError(t, err)
	var database bytes.Buffer
	require.NoError(t, s.Export(func(_, _ int64, from io.WriterTo) error {
		_, err := from.WriteTo(&database)
		return err
	}))
	stop()
	sum := sha256.Sum256(database.Bytes())
	snap := append(database.Bytes(), sum[:]...)

	var c config.Config
	c.DataDir, c.RunDir = t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(c.DataDir, keyDir), 0o700))
	_, _, err = RestoreSnapshot(t.Context(), c, bytes.NewReader(snap), false)
	require.ErrorContains(t, err, "has a cluster already")
	_, _, err = RestoreSnapshot(t.Context(), c, bytes.NewReader(snap[:len(snap)-100]), true)
	require.ErrorContains(t, err, "incomplete")
	require.DirExists(t, filepath.Join(c.DataDir, keyDir))
	m, old, err := RestoreSnapshot(t.Context(), c, bytes.NewReader(snap), true)
	require.NoError(t, err)
	require.True(t, m.Etcd)
	require.DirExists(t, filepath.Join(old, keyDir))
	require.NoError(t, checkLost(c.DataDir))
	entries, err := os.ReadDir(filepath.Join(c.DataDir, keyDir))
	require.NoError(t, err)
	require.Empty(t, entries, "a start makes new keys")
	s, stop = opened(c.DataDir)
	defer stop()
	kv, err := s.Get(t.Context(), "/registry/configmaps/default/a")
	require.NoError(t, err)
	require.Equal(t, "theirs", string(kv.Value))
}
