package memory

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// smallHeap is the size of live heap, in bytes, up to which garbage may pile up to as much again, as Go does by
	// default.
	smallHeap = 64 << 20
	// Above it, garbage may be smallHeap and one part in largeShare of what is live beyond.
	largeShare = 8
	// A process whose collections come within busyWithin of each other is busy.
	busyWithin = 2 * time.Second
	// mostRoom is the size that the heap of a busy process may reach with its garbage, in bytes, on a machine that has
	// roomShare times as much.
	mostRoom, roomShare = 512 << 20, 8
	// percentStep is the least change of the percentage that is worth stopping the world for some microseconds.
	percentStep = 4
	// usual is Go's default percentage.
	usual = 100
)

// gcPercent returns the percentage of live heap that may be allocated before the next collection, of a process that may
// fill room bytes if it is busy.
func gcPercent(live uint64, busy bool, room uint64) int {
	if live <= smallHeap {
		return usual
	}
	garbage := smallHeap + (live-smallHeap)/largeShare
	if busy && room > live {
		garbage = max(garbage, min(live, room-live))
	}
	return int(garbage * 100 / live)
}

// BoundGarbage makes the garbage collector run before a large heap doubles, from now on until the returned function is
// called: most of it is the cluster's objects, which stay. While there is much to do, it may double as long as it fits
// in the share of the machine's memory, in bytes. It does nothing if the environment variable GOGC says what to do.
func BoundGarbage(machine int64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	room := uint64(min(max(machine, 0)/roomShare, mostRoom))
	return boundGarbage(room, collected, func(percent int) { debug.SetGCPercent(percent) })
}

// collection is what is known after a garbage collection.
type collection struct {
	live   uint64 // bytes
	forced uint64 // how many collections were asked for, not due
	at     time.Time
}

func collected() collection {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/forced:gc-cycles"}}
	metrics.Read(s)
	return collection{s[0].Value.Uint64(), s[1].Value.Uint64(), time.Now()}
}

// boundGarbage calls set with the percentage for what is live after a collection, if it is another than before. When
// stopped, it sets Go's default. Go collects after two minutes at the latest, so a process that is idle again does not
// stay busy.
func boundGarbage(room uint64, last func() collection, set func(percent int)) (stop func()) {
	var mu sync.Mutex
	now, stopped := usual, false
	var before collection
	end := AfterCollections(func() {
		mu.Lock()
		defer mu.Unlock()
		c := last()
		busy := c.at.Sub(before.at) < busyWithin && c.forced == before.forced
		before = c
		if next := gcPercent(c.live, busy, room); !stopped && (next >= now+percentStep || next <= now-percentStep) {
			now = next
			set(now)
		}
	})
	return func() {
		end()
		mu.Lock()
		defer mu.Unlock()
		if stopped = true; now != usual {
			set(usual)
		}
	}
}
