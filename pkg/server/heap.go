package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// busyWithin is the time between two collections from which on the heap counts as busy.
	busyWithin = 2 * time.Second
	// busyRoom is how much may be allocated between two collections while it is, also if less is alive.
	busyRoom  = 96 << 20
	calmShare = 100 // GOGC's default, in percent of what is alive
)

// heapPacer lets a small, fast-growing heap grow further before it is collected: marking it again for every few
// hundred writes costs more than the writes' own work. Once it is calm, the default holds again and the memory goes back,
// with the collection that the runtime makes after two minutes at the latest.
type heapPacer struct {
	now     func() time.Time
	alive   func() uint64
	set     func(percent int) int
	last    time.Time
	percent int
	ended   atomic.Bool
}

// paceHeap begins; the function it returns ends it. A GOGC of the user's own is respected.
func paceHeap() func() {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	p := &heapPacer{now: time.Now, set: debug.SetGCPercent, percent: calmShare, alive: func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}}
	p.last = p.now()
	p.afterNext()
	return func() { p.ended.Store(true) }
}

// afterNext looks at the heap once the next collection has found an object that nobody holds.
func (p *heapPacer) afterNext() {
	runtime.AddCleanup(new([32]byte), func(p *heapPacer) {
		if p.ended.Load() {
			return
		}
		p.look()
		p.afterNext()
	}, p)
}

func (p *heapPacer) look() {
	now := p.now()
	want := calmShare
	if now.Sub(p.last) < busyWithin {
		want = max(calmShare, int(busyRoom*100/max(p.alive(), 1<<20)))
	}
	p.last = now
	// The world stops for a new value, so it is not set for little.
	if want != p.percent && (want == calmShare || want < p.percent*3/4 || want > p.percent*4/3) {
		p.percent = want
		p.set(want)
	}
}
