package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseReserved(t *testing.T) {
	const gib = int64(1 << 30)
	r, err := ParseReserved(nil)
	require.NoError(t, err)
	for memory, want := range map[int64]int64{gib / 8: gib / 16, gib: gib / 8, 4 * gib: gib / 4, 64 * gib: gib / 2} {
		require.Equal(t, want, r.MemoryOf(memory))
	}
	require.Positive(t, r.PIDs)
	r, err = ParseReserved([]string{"memory=1Gi", " cpu = 250m", "pid=500"})
	require.NoError(t, err)
	require.Equal(t, gib, r.MemoryOf(64*gib))
	require.Equal(t, gib/2, r.MemoryOf(gib), "half is the pods'")
	require.EqualValues(t, 250, r.MilliCPU)
	require.EqualValues(t, 500, r.PIDs)
	r, err = ParseReserved([]string{"memory=0"})
	require.NoError(t, err)
	require.Zero(t, r.MemoryOf(gib))
	for _, bad := range []string{"memory", "memory=x", "memory=-1", "disk=1Gi", ""} {
		_, err := ParseReserved([]string{bad})
		require.ErrorContains(t, err, "kube-reserved", bad)
	}
	c := Default()
	for pids, ok := range map[int64]bool{-1: true, 4096: true, 16: true, 15: false, 0: false, -2: false} {
		c.PodMaxPIDs = pids
		require.Equal(t, ok, c.Validate() == nil, pids)
	}
	c = Default()
	for most, ok := range map[int64]bool{-1: true, 4096: true, 64: true, 63: false, 0: false, 1 << 31: false} {
		c.PodMaxConnections = most
		require.Equal(t, ok, c.Validate() == nil, most)
	}
}
