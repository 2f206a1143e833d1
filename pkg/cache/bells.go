package cache

import (
	"runtime"
	"slices"
	"sync"
)

// atOnce is how many watchers are woken before they are let run. A burst of more would fill a processor's queue of
// goroutines, behind which the answers to writes, and the watchers woken first, would have to wait for the last ones.
const atOnce = 16

// bells wake the watchers of one kind, in the order in which they came.
type bells struct {
	mu sync.Mutex
	// all is replaced, or appended to, but what is in it never changes: who holds it may go through it.
	all     []*Watcher
	ringing bool // a goroutine wakes those that do not come at once
	again   bool // and has to do it once more
}

func (b *bells) add(w *Watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, w)
}

func (b *bells) remove(w *Watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.all, w)
	if i < 0 {
		return
	}
	b.all = slices.Concat(b.all[:i], b.all[i+1:])
	if b.ringing && i < atOnce && len(b.all) >= atOnce {
		// One of those whom the goroutine was to wake is now among the first, whom it does not look at.
		b.all[atOnce-1].wake()
	}
}

// ring wakes all watchers: the first of them before it returns, the others soon after.
func (b *bells) ring() {
	b.mu.Lock()
	all := b.all
	first := min(len(all), atOnce)
	start := len(all) > first && !b.ringing
	if len(all) > first {
		b.ringing, b.again = true, true
	}
	b.mu.Unlock()
	for _, w := range all[:first] {
		w.wake()
	}
	if start {
		go b.others()
	}
}

// others wakes the watchers after the first, and ends.
func (b *bells) others() {
	for {
		b.mu.Lock()
		all := b.all
		if b.ringing = b.again; !b.ringing {
			b.mu.Unlock()
			return
		}
		b.again = false
		b.mu.Unlock()
		for i := atOnce; i < len(all); i++ {
			if i%atOnce == 0 {
				runtime.Gosched()
			}
			all[i].wake()
		}
	}
}
