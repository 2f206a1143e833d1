package containerd

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
	"github.com/coracle-dev/coracle/pkg/agent/runtime/runtimetest"
	"github.com/coracle-dev/coracle/pkg/agent/userns"
)

// ownUsers gives pods user namespaces as the agent does.
func ownUsers(t testing.TB, r *Runtime) func(*testing.T) (int, runtime.Users) {
	m := userns.New(userns.Config{Program: r.Shim(), Dir: r.config.DataDir, IDs: userns.Unit, Pods: 1})
	require.NoError(t, m.Supported())
	return func(t *testing.T) (int, runtime.Users) {
		ids, err := m.Take(t.Name())
		require.NoError(t, err)
		pid, end, err := m.Start(ids)
		require.NoError(t, err)
		t.Cleanup(func() {
			end()
			m.Release(t.Name())
		})
		return pid, runtime.Users{Path: fmt.Sprintf("/proc/%d/ns/user", pid), First: ids.First, Count: ids.Count}
	}
}

// What containers do with the host's users they do with users of their own.
func TestConformanceWithOwnUsers(t *testing.T) {
	engines(t, func(t *testing.T, r *Runtime) {
		t.Run("suite", (&runtimetest.Suite{Runtime: r, Real: true, Users: ownUsers(t, r)}).Run)
	})
}
