package containerd

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// TestADatabaseThatDoesNotOpen: the errors for a damaged database and for one that another process uses differ.
func TestADatabaseThatDoesNotOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meta.db")
	options := &bolt.Options{Timeout: time.Millisecond}
	db, err := bolt.Open(file, 0o600, options)
	require.NoError(t, err)
	_, err = bolt.Open(file, 0o600, options)
	require.ErrorContains(t, notOpened(file, err), "is locked by another process")
	require.NoError(t, db.Close())

	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("garbage"), 10_000), 0o600))
	_, err = bolt.Open(file, 0o600, options)
	require.ErrorContains(t, notOpened(file, err), "cannot be opened: invalid database: if it is damaged, restore it")
}
