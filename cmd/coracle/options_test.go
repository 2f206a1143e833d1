package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/bounded"
)

func TestConfigurationFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte("log-level: debug\n"), 0o600))
	link := path + ".link"
	require.NoError(t, os.Symlink(path, link))
	data, err := readConfig(link) // configuration may be a link, as in a mounted ConfigMap
	require.NoError(t, err)
	require.Equal(t, "log-level: debug\n", string(data))

	require.NoError(t, os.Truncate(path, 1<<40))
	var large *bounded.TooLargeError
	_, err = readConfig(path)
	require.ErrorAs(t, err, &large)
	require.ErrorContains(t, err, path)
}
