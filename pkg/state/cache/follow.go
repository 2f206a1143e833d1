package cache

import (
	"slices"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Follow watches all objects of a kind from the current state on, for readers in this process that must never relist.
// Where other watchers get ErrExpired, a slow follower gets the missed changes merged into one per object. Its backlog
// is bounded by the number of objects.
func (c *Cache) Follow(r *kind.Resource) (w *Watcher, initial []*Entry, err error) {
	w, err = c.newWatcher(r, Query{})
	if err != nil {
		return nil, nil, err
	}
	w.missed = map[string]*change{}
	initial, _, err = w.startNow()
	return w, initial, err
}

// miss records a change that is dropped from the ring before the follower has read it. The caller holds t.mu.
func (w *Watcher) miss(seq uint64, ch *change) {
	if w.cursor > seq {
		return
	}
	w.cursor = seq + 1
	if ch.rev <= w.after {
		return
	}
	w.missedTo = ch.rev
	key := ch.key()
	if was := w.missed[key]; was != nil {
		ch = &change{rev: ch.rev, entry: ch.entry, prev: was.prev, merged: true}
	}
	if ch.entry == nil && ch.prev == nil {
		delete(w.missed, key) // created and deleted unseen
		return
	}
	w.missed[key] = ch
}

// catchUp moves the missed changes to w.changes, in order, once they are published. The caller holds t.mu for reading.
func (w *Watcher) catchUp(published int64) {
	if len(w.missed) == 0 || w.missedTo > published {
		return
	}
	for _, ch := range w.missed {
		if ch.prev != nil && ch.entry != nil && ch.prev.Object.GetUID() != ch.entry.Object.GetUID() {
			w.changes = append(w.changes, &change{rev: ch.rev, prev: ch.prev, merged: true},
				&change{rev: ch.rev, entry: ch.entry})
			continue
		}
		w.changes = append(w.changes, ch)
	}
	clear(w.missed)
	slices.SortStableFunc(w.changes, func(a, b *change) int { return int(a.rev - b.rev) })
}
