package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	// smallHeap is the size of live heap, in bytes, up to which garbage may pile up to as much again, as Go does by default.
	smallHeap = 64 << 20
	// Above it, garbage may be smallHeap and one part in largeShare of what is live beyond.
	largeShare = 8
	// percentStep is the least change of the percentage that is worth stopping the world for some microseconds.
	percentStep = 4
)

// gcPercent returns the percentage of live heap that may be allocated before the next collection.
func gcPercent(live uint64) int {
	if live <= smallHeap {
		return 100
	}
	return int((smallHeap + (live-smallHeap)/largeShare) * 100 / live)
}

// boundGarbage makes the garbage collector run before a large heap doubles, from now on until the returned function is called: most of it are the
// cluster's objects, which stay. It does nothing if the environment variable GOGC says what to do.
func boundGarbage() (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	return followCollections(func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}, func(percent int) { debug.SetGCPercent(percent) })
}

// followCollections calls set with the percentage for what is live after a collection, if it is another than before. When stopped, it sets Go's
// default.
func followCollections(live func() uint64, set func(percent int)) (stop func()) {
	var stopped atomic.Bool
	now := 100
	var collected func(*cycle)
	collected = func(c *cycle) {
		if stopped.Load() {
			if now != 100 {
				set(100)
			}
			return
		}
		if next := gcPercent(live()); next >= now+percentStep || next <= now-percentStep {
			now = next
			set(now)
		}
		runtime.SetFinalizer(c, collected)
	}
	runtime.SetFinalizer(&cycle{}, collected)
	return func() { stopped.Store(true) }
}

// cycle is an object that nothing refers to, whose finalizer runs after each collection.
type cycle struct{ _ [16]byte } // larger than what the allocator packs together with other objects
