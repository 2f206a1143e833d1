package containerd

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
	"github.com/coracle-dev/coracle/pkg/agent/runtime/runtimetest"
	"github.com/coracle-dev/coracle/pkg/agent/userns"
)

// ownUsers gives pods user namespaces as the agent does.
func ownUsers(t testing.TB, r *Runtime) func(testing.TB) (int, runtime.Users) {
	m := userns.New(userns.Config{Program: r.Shim(), Dir: r.config.DataDir, IDs: userns.Unit, Pods: 1})
	require.NoError(t, m.Supported())
	var next atomic.Int32
	return func(t testing.TB) (int, runtime.Users) {
		owner := fmt.Sprint(next.Add(1))
		ids, err := m.Take(owner)
		require.NoError(t, err)
		pid, end, err := m.Start(ids)
		require.NoError(t, err)
		t.Cleanup(func() {
			end()
			m.Release(owner)
		})
		return pid, runtime.Users{Path: fmt.Sprintf("/proc/%d/ns/user", pid), First: ids.First, Count: ids.Count}
	}
}

// withUsers makes a container one of a pod with these users, and with the namespaces of the process.
func withUsers(pid int, users runtime.Users, s *runtime.Spec) {
	s.Users, s.NetNS = &users, fmt.Sprintf("/proc/%d/ns/net", pid)
	for i := range s.Mounts {
		s.Mounts[i].MapIDs = true
	}
}

// What containers do with the host's users they do with users of their own.
func TestConformanceWithOwnUsers(t *testing.T) {
	engines(t, func(t *testing.T, r *Runtime) {
		t.Run("suite", (&runtimetest.Suite{Runtime: r, Real: true, Users: ownUsers(t, r)}).Run)
	})
}
