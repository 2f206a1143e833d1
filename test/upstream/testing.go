package upstream

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// Variable is the environment variable that enables tests that need upstream's programs.
const Variable = "CORACLE_TEST_UPSTREAM"

// Needs skips the test unless Variable is set. It returns the folder with the programs, and fails if they are not
// built. Only tests in a folder two levels below the project's root may call it.
func Needs(t *testing.T) string {
	t.Helper()
	if os.Getenv(Variable) == "" {
		t.Skipf("needs upstream's programs, which take minutes to compile: run `make upstream` and set %s=1", Variable)
	}
	dir := filepath.Join(host.Root(t), "dist/upstream")
	for _, name := range []string{Etcd, APIServer} {
		require.FileExists(t, filepath.Join(dir, name), "run `make upstream` first")
	}
	return dir
}

// New starts the programs on a machine, and stops them when the test ends. It fills in the unset fields of c. Call
// it before starting anything that must stop earlier: cleanups run in reverse order.
func New(t *testing.T, h *host.Host, c Config) *Cluster {
	t.Helper()
	c.Programs = Needs(t)
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.Address == "" {
		c.Address = h.Address
	}
	c.Command, c.Dial = h.Command, h.Dial
	cluster, err := Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}
