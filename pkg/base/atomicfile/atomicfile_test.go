package atomicfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWrite(t *testing.T) {
	for name, write := range map[string]func(string, []byte) error{"plain": Write, "durable": WriteDurably} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			require.NoError(t, os.WriteFile(path+Suffix, []byte("longer than what follows it"), 0o600),
				"left by a killed process")
			for _, text := range []string{"old", "new"} {
				require.NoError(t, write(path, []byte(text)))
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, text, string(data))
			}
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode())
			entries, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			require.Len(t, entries, 1, "nothing is left beside it")
		})
	}
}

func TestAFailedWriteKeepsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, Write(path, []byte("old")))
	require.NoError(t, os.MkdirAll(filepath.Join(path+Suffix, "full"), 0o700), "nothing can be written there")
	require.Error(t, Write(path, []byte("new")))
	require.Error(t, WriteDurably(path, []byte("new")))
	require.Error(t, WriteJSON(path, func() {}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(data))
}
