package disk

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	dir := t.TempDir()
	empty, err := Of(t.Context(), dir)
	require.NoError(t, err)
	require.EqualValues(t, 1, empty.Inodes)

	outside := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(outside, make([]byte, 1<<20), 0o600))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	file := filepath.Join(dir, "sub", "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 300<<10), 0o600))
	require.NoError(t, os.Link(file, filepath.Join(dir, "again")))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1<<30))
	require.NoError(t, sparse.Close())

	u, err := Of(t.Context(), dir)
	require.NoError(t, err)
	require.EqualValues(t, 5, u.Inodes)
	require.GreaterOrEqual(t, u.Bytes, uint64(300<<10))
	require.Less(t, u.Bytes, uint64(400<<10))

	none, err := Of(t.Context(), filepath.Join(dir, "none"))
	require.NoError(t, err)
	require.Zero(t, none)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Of(ended, dir)
	require.ErrorIs(t, err, context.Canceled)
}
