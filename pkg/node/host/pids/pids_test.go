package pids

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOfThisMachine: the machine has this test's threads at least, fewer than it may have.
func TestOfThisMachine(t *testing.T) {
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	count, err := Count()
	require.NoError(t, err)
	require.GreaterOrEqual(t, count, int64(len(threads)))
	limit, err := Limit()
	require.NoError(t, err)
	require.Greater(t, limit, count)
}
