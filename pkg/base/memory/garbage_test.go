package memory

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	last := map[bool]uint64{}
	for _, c := range []struct {
		live          uint64
		percent, busy int
	}{{
		0, 100, 100,
	}, {14 * mib, 100, 100}, {64 * mib, 100, 100}, {128 * mib, 56, 100}, {256 * mib, 34, 100}, {400 * mib, 26, 28},
		{1024 * mib, 17, 17}, {1 << 40, 12, 12}} {
		for busy, percent := range map[bool]int{false: c.percent, true: c.busy} {
			require.Equal(t, percent, gcPercent(c.live, busy, 512*mib), "%d MiB, busy: %t", c.live/mib, busy)
			goal := c.live + c.live*uint64(percent)/100
			require.GreaterOrEqual(t, goal, last[busy], "a larger heap never has a smaller goal")
			last[busy] = goal
		}
	}
	require.Equal(t, 56, gcPercent(128*mib, true, 150*mib), "a small machine has no room")
	require.Equal(t, 56, gcPercent(128*mib, true, 0), "nor one whose memory is not known")
}

func TestGarbageIsBounded(t *testing.T) {
	type phase struct {
		live   uint64
		apart  time.Duration // time between collections
		forced uint64        // of each collection
	}
	var now atomic.Pointer[phase]
	var last collection // used only by the callback
	set := make(chan int, 1)
	begin := func(live uint64, apart time.Duration, forced uint64) { now.Store(&phase{live, apart, forced}) }
	begin(256<<20, time.Minute, 0)
	stop := boundGarbage(512<<20, func() collection {
		p := now.Load()
		last = collection{p.live, last.forced + p.forced, last.at.Add(p.apart)}
		return last
	}, func(percent int) { set <- percent })
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
	require.Equal(t, 34, collect())
	begin(1<<30, time.Minute, 0)
	require.Equal(t, 17, collect())
	begin(8<<20, time.Minute, 0)
	require.Equal(t, 100, collect())
	begin(400<<20, busyWithin/2, 1)
	require.Equal(t, 26, collect(), "that somebody asks for collections does not make the process busy")
	begin(256<<20, busyWithin/2, 0)
	require.Equal(t, 100, collect())
	begin(256<<20, busyWithin, 0)
	require.Equal(t, 34, collect())
	stop()
	require.Equal(t, 100, <-set)
	begin(1<<30, time.Minute, 0)
	runtime.GC()
	require.Empty(t, set, "it was stopped")
}
