package memory

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// smallHeap is the live heap in bytes up to which garbage may grow to the same size, as is Go's default.
	smallHeap = 64 << 20
	// Above smallHeap, garbage may be smallHeap plus one part in largeShare of the live heap beyond it.
	largeShare = 8
	// A process is busy if its collections come within busyWithin of each other.
	busyWithin = 2 * time.Second
	// mostRoom limits the heap of a busy process including garbage, in bytes. A machine with less than roomShare times
	// as much memory allows one part in roomShare of it.
	mostRoom, roomShare = 512 << 20, 8
	// percentStep is the smallest change of the percentage to apply, because each stops the world for some
	// microseconds.
	percentStep = 4
	usual       = 100
)

// gcPercent returns the percentage of the live heap that may be allocated before the next collection. A busy process
// may fill room bytes.
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

// BoundGarbage makes the garbage collector run before a large heap doubles, until stop is called: most of the heap is
// the cluster's objects, which stay. A busy process's heap may double within a share of the machine's memory (bytes).
// It does nothing if the environment variable GOGC is set.
func BoundGarbage(machine int64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	room := uint64(min(max(machine, 0)/roomShare, mostRoom))
	return boundGarbage(room, collected, func(percent int) { debug.SetGCPercent(percent) })
}

type collection struct {
	live   uint64 // bytes
	forced uint64 // number of forced collections
	at     time.Time
}

func collected() collection {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/forced:gc-cycles"}}
	metrics.Read(s)
	return collection{s[0].Value.Uint64(), s[1].Value.Uint64(), time.Now()}
}

// boundGarbage calls set with the percentage after a collection if it has changed. When stopped, it sets Go's default.
// Go collects at least every two minutes, so a process that becomes idle does not stay busy.
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
