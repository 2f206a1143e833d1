package cache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Event is one change as seen through a watcher's selector. Type is Added, Modified, Deleted or Bookmark
// (watch.EventType). For Deleted, Entry is the last state, with the deletion's revision as its resourceVersion. An
// object that starts or stops matching the selector is Added or Deleted.
type Event struct {
	Type  string
	Entry *Entry
	Prev  *Entry
	Rev   int64
	// Merged is set if the event combines several changes, which only followers get. The last state of a deleted
	// object may then differ from Entry.
	Merged bool
}

const watchBatch = 256

// Watcher delivers the events after a revision, in order. It has no buffer, only a cursor in its kind's ring.
type Watcher struct {
	c        *Cache
	t        *kindCache
	m        matcher
	cursor   uint64 // the next change to read
	after    int64  // changes up to this revision are skipped
	reported int64  // all events up to this revision have been delivered
	// Changes dropped from the ring before a follower read them, by key. Nil unless the watcher is a follower.
	missed   map[string]*change
	missedTo int64 // the revision of the last of these
	closed   atomic.Bool
	wakeup   chan struct{} // capacity 1: the kind has changed since the last read

	changes []*change
	events  []Event
}

// Watch starts after revision rev. It returns ErrExpired if neither the ring nor the source's history reaches back
// that far. With rev < 0 it starts at the current state: initial is its entries and sync its revision, and no change
// after sync is missed.
func (c *Cache) Watch(r *kind.Resource, q Query, rev int64) (w *Watcher, initial []*Entry, sync int64, err error) {
	w, err = c.newWatcher(r, q)
	if err != nil {
		return nil, nil, 0, err
	}
	if rev < 0 {
		initial, rev, err = w.startNow()
		return w, initial, rev, err
	}
	err = w.start(rev)
	if errors.Is(err, ErrExpired) && c.recall(rev) {
		err = w.start(rev)
	}
	if errors.Is(err, ErrExpired) {
		w.t.refused.Add(1)
	}
	return w, nil, rev, err
}

func (c *Cache) newWatcher(r *kind.Resource, q Query) (*Watcher, error) {
	t := c.kindCache(r)
	if t == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnknownKind, r.GVR())
	}
	return &Watcher{c: c, t: t, m: newMatcher(r, q), wakeup: make(chan struct{}, 1)}, nil
}

func (w *Watcher) startNow() (initial []*Entry, rev int64, err error) {
	for {
		now := w.c.rev.Load()
		s := w.t.snapshot()
		rev = max(now, s.rev)
		// If a whole ring of changes arrived in between, retry.
		err := w.start(rev)
		if errors.Is(err, ErrExpired) && w.c.rev.Load() != 0 {
			continue
		}
		return s.list(&w.m), rev, err
	}
}

func (w *Watcher) start(rev int64) error {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	r := &w.t.ring
	if rev < r.floor {
		return ErrExpired
	}
	w.cursor, w.after, w.reported = r.after(rev), rev, rev
	if w.missed != nil {
		r.followers = append(r.followers, w)
	}
	w.t.notifier.add(w)
	return nil
}

// Close ends the watcher. It must be called; it is idempotent and safe for concurrent use.
func (w *Watcher) Close() {
	if w.closed.CompareAndSwap(false, true) {
		w.t.notifier.remove(w)
		if w.missed != nil {
			w.t.mu.Lock()
			w.t.ring.leave(w)
			w.t.mu.Unlock()
		}
		w.wake()
	}
}

func (w *Watcher) wake() {
	select {
	case w.wakeup <- struct{}{}:
	default:
	}
}

// Next blocks for the next events and returns them as a batch, which is valid until the next call. It returns ctx's
// error, ErrExpired when the watcher fell behind the ring, ErrRemoved when the kind was removed, or ErrStopped. Only
// one goroutine may call it.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		removed := w.t.removed.Load() // before the ring is read, so that the last changes are not lost
		more, err := w.read()
		if err != nil {
			return nil, err
		}
		if len(w.events) > 0 {
			return w.events, nil
		}
		if more {
			continue
		}
		// Closing the watcher and stopping the cache both send a wakeup afterwards.
		select {
		case <-w.c.stopped:
			return nil, ErrStopped
		default:
		}
		if w.closed.Load() {
			return nil, ErrStopped
		}
		if removed {
			return nil, ErrRemoved
		}
		// Changes published after the ring was read send a wakeup. Each watcher has its own channel, so that watchers
		// do not contend for its lock.
		select {
		case <-w.wakeup:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// read advances by at most watchBatch changes and leaves the matching events in w.events.
func (w *Watcher) read() (more bool, err error) {
	rev := w.c.rev.Load() // later changes are in the ring, but not yet published
	w.changes, w.events = w.changes[:0], w.events[:0]
	w.t.mu.RLock()
	r := &w.t.ring
	if w.cursor < r.first {
		w.t.mu.RUnlock()
		w.t.expired.Add(1)
		return false, ErrExpired
	}
	w.catchUp(rev)
	for ; w.cursor < r.next && len(w.changes) < watchBatch; w.cursor++ {
		ch := r.at(w.cursor)
		if ch.rev > rev {
			break
		}
		if ch.rev > w.after {
			w.changes = append(w.changes, ch)
		}
	}
	w.t.mu.RUnlock()
	for _, ch := range w.changes {
		if ev, ok := w.m.see(ch); ok {
			w.events = append(w.events, ev)
		}
	}
	more = len(w.changes) >= watchBatch
	clear(w.changes) // so that an idle watcher retains no old objects
	return more, nil
}

// see returns the event that a change causes under the selector, if any.
func (m *matcher) see(ch *change) (Event, bool) {
	now := ch.entry != nil && m.match(ch.entry)
	before := ch.prev != nil && m.match(ch.prev)
	ev := Event{Entry: ch.entry, Prev: ch.prev, Rev: ch.rev, Merged: ch.merged}
	switch {
	case now && before:
		ev.Type = string(watch.Modified)
	case now:
		ev.Type, ev.Prev = string(watch.Added), nil
	case before:
		ev.Type, ev.Entry = string(watch.Deleted), ch.last()
	default:
		return Event{}, false
	}
	return ev, true
}

// Progress is the revision up to which Next has delivered all events, for bookmarks. It is the cache's revision when
// the watcher has nothing left to read, even if its kind did not change. Only Next's goroutine may call it.
func (w *Watcher) Progress() int64 {
	rev := w.c.rev.Load()
	w.t.mu.RLock()
	defer w.t.mu.RUnlock()
	if r := &w.t.ring; w.cursor < r.first || len(w.missed) > 0 {
		return w.reported
	} else if w.cursor < r.next {
		rev = min(rev, r.at(w.cursor).rev-1)
	}
	w.reported = max(w.reported, rev)
	return w.reported
}

// Ahead reports whether the watcher starts after a revision that the cache has not reached yet.
func (w *Watcher) Ahead() bool { return w.c.rev.Load() < w.after }
