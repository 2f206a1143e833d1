package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file of etcdctl is unpacked whole and unchanged, or refused.
func TestEtcdSnapshots(t *testing.T) {
	database := bytes.Repeat([]byte("page"), 3*sector/4)
	binary.LittleEndian.PutUint32(database[16:], etcdMagic)
	sum := sha256.Sum256(database)
	good := append(bytes.Clone(database), sum[:]...)
	require.True(t, IsEtcd(good[:EtcdHead]))
	require.False(t, IsEtcd(good[:EtcdHead-1]))
	require.False(t, IsEtcd([]byte("\x28\xb5\x2f\xfd of zstd, and more of it")))
	dir := t.TempDir()
	require.NoError(t, UnpackEtcd(bytes.NewReader(good), dir))
	got, err := os.ReadFile(filepath.Join(dir, Database))
	require.NoError(t, err)
	require.Equal(t, database, got, "without the hash")
	require.ErrorIs(t, UnpackEtcd(bytes.NewReader(good), dir), os.ErrExist)

	changed := bytes.Clone(good)
	changed[100]++
	for want, content := range map[string][]byte{
		"etcdctl snapshot save": database,
		"incomplete":            good[:len(good)-1],
		"damaged":               changed,
	} {
		require.ErrorContains(t, UnpackEtcd(bytes.NewReader(content), t.TempDir()), want)
	}
}
