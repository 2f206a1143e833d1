package cache

import (
	"runtime"
	"slices"
	"sync"
)

// wakeBatch is how many watchers are woken before yielding the processor. A larger burst fills a processor's run
// queue, which delays responses to writes and the watchers woken first.
const wakeBatch = 16

// notifier wakes the watchers of one kind, in the order in which they were added.
type notifier struct {
	mu sync.Mutex
	// all is copy-on-write: it is replaced or appended to, and its elements never change. A copy of the slice header
	// may be iterated without the lock.
	all     []*Watcher
	running bool // a goroutine is waking the watchers beyond the first batch
	pending bool // and must wake them once more
}

func (b *notifier) add(w *Watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, w)
}

func (b *notifier) remove(w *Watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.all, w)
	if i < 0 {
		return
	}
	b.all = slices.Concat(b.all[:i], b.all[i+1:])
	if b.running && i < wakeBatch && len(b.all) >= wakeBatch {
		// A watcher that the goroutine still had to wake has moved into the first batch, which the goroutine skips.
		b.all[wakeBatch-1].wake()
	}
}

// notify wakes all watchers: the first batch before it returns, the rest asynchronously.
func (b *notifier) notify() {
	b.mu.Lock()
	all := b.all
	first := min(len(all), wakeBatch)
	start := len(all) > first && !b.running
	if len(all) > first {
		b.running, b.pending = true, true
	}
	b.mu.Unlock()
	for _, w := range all[:first] {
		w.wake()
	}
	if start {
		go b.notifyRest()
	}
}

func (b *notifier) notifyRest() {
	for {
		b.mu.Lock()
		all := b.all
		if b.running = b.pending; !b.running {
			b.mu.Unlock()
			return
		}
		b.pending = false
		b.mu.Unlock()
		for i := wakeBatch; i < len(all); i++ {
			if i%wakeBatch == 0 {
				runtime.Gosched()
			}
			all[i].wake()
		}
	}
}
