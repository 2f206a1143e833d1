package memory

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	last := uint64(0)
	for _, c := range []struct {
		live    uint64
		percent int
	}{{0, 100}, {14 * mib, 100}, {64 * mib, 100}, {128 * mib, 56}, {256 * mib, 34}, {400 * mib, 26}, {1024 * mib, 17}, {1 << 40, 12}} {
		require.Equal(t, c.percent, gcPercent(c.live), "%d MiB", c.live/mib)
		goal := c.live + c.live*uint64(c.percent)/100
		require.GreaterOrEqual(t, goal, last, "a larger heap never has a smaller goal")
		last = goal
	}
}

func TestGarbageIsBounded(t *testing.T) {
	var live atomic.Uint64
	set := make(chan int, 1)
	stop := boundGarbage(live.Load, func(percent int) { set <- percent })
	collect := func() (percent int) {
		for {
			runtime.GC()
			select {
			case percent = <-set:
				return percent
			default:
			}
		}
	}
	live.Store(256 << 20)
	require.Equal(t, 34, collect())
	live.Store(1 << 30)
	require.Equal(t, 17, collect())
	live.Store(8 << 20)
	require.Equal(t, 100, collect())
	live.Store(256 << 20)
	require.Equal(t, 34, collect())
	stop()
	require.Equal(t, 100, <-set)
	live.Store(1 << 30)
	runtime.GC()
	require.Empty(t, set, "it was stopped")
}
