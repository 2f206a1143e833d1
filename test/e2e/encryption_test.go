package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestSecretsEncryption checks that Secrets are encrypted on disk, that a killed key rotation loses no data and can
// be completed, that the server refuses to start without the keys, and that encryption can be disabled again.
func TestSecretsEncryption(t *testing.T) {
	h := host.New(t)
	h.Start("--secrets-encryption")
	const hidden = "hidden-from-the-disk"
	var manifest strings.Builder
	for i := range 300 {
		fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s-%d}\nstringData: {k: %s}\n", i, hidden)
	}
	file := filepath.Join(h.Home, "secrets.yaml")
	require.NoError(t, os.WriteFile(file, []byte(manifest.String()), 0o600))
	h.Ctl("create -f " + file)
	require.NoError(t,
		filepath.WalkDir(filepath.Join(h.DataDir, "store"), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				var data []byte
				data, err = os.ReadFile(path)
				require.False(t, bytes.Contains(data, []byte(hidden)), path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the store has replaced it
			}
			return err
		}))

	pid := h.Status().PID
	rotate := h.Command(t.Context(), h.Coracle, "secrets-encrypt", "rotate-keys")
	out, err := rotate.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, rotate.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "Added the key")
	h.KillAtOnce(pid)
	_ = rotate.Wait() // rotate lost its server, unless it ended earlier

	h.Run("start") // the keys in the data directory stand for the option
	secrets := func() {
		t.Helper()
		require.Equal(t, 300, strings.Count(h.Ctl("get secrets -o jsonpath={.items[*].data.k}"), "aGlkZGVu"))
	}
	secrets()
	h.Run("secrets-encrypt", "rotate-keys")
	secrets()
	config, err := os.ReadFile(filepath.Join(h.DataDir, "encryption/config.yaml"))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(config), "secret: "), "one key is left")

	h.Run("secrets-encrypt", "disable")
	h.Run("secrets-encrypt", "reencrypt")
	h.Run("stop")
	h.Run("start")
	secrets()
	require.Contains(t, h.Run("secrets-encrypt", "status"), "Encryption is off")
}
