package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A restore that ends between any two of its renames leaves the old cluster's parts aside, no process starts, and the
// next attempt completes it.
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
	// unpacked is the state of RestoreSnapshot before install.
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
		// It fails at the part last: the directory is in the place of its new one.
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
			require.Contains(t, []string{read(filepath.Join(first, name)), read(filepath.Join(second, name))}, "old", "%s of the old cluster is kept", name)
		}
	}
}
