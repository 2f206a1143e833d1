package memory

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

const (
	// smallHeap is the size of live heap, in bytes, up to which garbage may pile up to as much again, as Go does by default.
	smallHeap = 64 << 20
	// Above it, garbage may be smallHeap and one part in largeShare of what is live beyond.
	largeShare = 8
	// percentStep is the least change of the percentage that is worth stopping the world for some microseconds.
	percentStep = 4
	// usual is Go's default percentage.
	usual = 100
)

// gcPercent returns the percentage of live heap that may be allocated before the next collection.
func gcPercent(live uint64) int {
	if live <= smallHeap {
		return usual
	}
	return int((smallHeap + (live-smallHeap)/largeShare) * 100 / live)
}

// BoundGarbage makes the garbage collector run before a large heap doubles, from now on until the returned function is called: most of it is the
// cluster's objects, which stay. It does nothing if the environment variable GOGC says what to do.
func BoundGarbage() (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	return boundGarbage(func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}, func(percent int) { debug.SetGCPercent(percent) })
}

// boundGarbage calls set with the percentage for what is live after a collection, if it is another than before. When stopped, it sets Go's
// default.
func boundGarbage(live func() uint64, set func(percent int)) (stop func()) {
	var mu sync.Mutex
	now, stopped := usual, false
	end := AfterCollections(func() {
		mu.Lock()
		defer mu.Unlock()
		if next := gcPercent(live()); !stopped && (next >= now+percentStep || next <= now-percentStep) {
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
