package cache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Event is one change as a watcher with a selector sees it: Type is Added, Modified, Deleted or Bookmark
// (watch.EventType). For Deleted, Entry is the last state, with the deletion's revision as its resourceVersion.
// An object that begins or ceases to match the selector is Added or Deleted.
type Event struct {
	Type  string
	Entry *Entry
	Prev  *Entry
	Rev   int64
	// Merged says that it stands for several changes, as only followers get them: what was deleted may have looked different
	// at its end.
	Merged bool
}

// watchBatch bounds what one Next returns.
const watchBatch = 256

// Watcher delivers the events after a revision, in order. It holds no buffer but a place in its kind's ring.
type Watcher struct {
	c        *Cache
	t        *table
	m        matcher
	cursor   uint64             // the next change to look at
	after    int64              // changes up to this revision are not for it
	told     int64              // the revision up to which everything has been told
	missed   map[string]*change // of a follower: what left the ring before it was read, by key; nil for others
	missedTo int64              // the revision of the last of these
	closed   atomic.Bool
	bell     chan struct{} // holds one: something has changed since it was looked at

	changes []*change
	events  []Event
}

// Watch starts after revision rev. ErrExpired if neither the ring nor the source's history reaches back so far. With rev < 0 it starts with
// the present state: entries as Added, then what follows, with none lost between; sync is the revision of that state.
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
	t := c.table(r)
	if t == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnknownKind, r.GVR())
	}
	return &Watcher{c: c, t: t, m: newMatcher(r, q), bell: make(chan struct{}, 1)}, nil
}

// startNow starts after the present state, and returns that.
func (w *Watcher) startNow() (initial []*Entry, rev int64, err error) {
	for {
		now := w.c.rev.Load()
		s := w.t.snapshot()
		rev = max(now, s.rev)
		// If a whole ring of changes came in between, begin again.
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
	w.cursor, w.after, w.told = r.after(rev), rev, rev
	if w.missed != nil {
		r.followers = append(r.followers, w)
	}
	w.t.bells.add(w)
	return nil
}

// Close ends the watcher. It must be called, may be called more than once, and by any goroutine.
func (w *Watcher) Close() {
	if w.closed.CompareAndSwap(false, true) {
		w.t.bells.remove(w)
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
	case w.bell <- struct{}{}:
	default:
	}
}

// Next blocks for the next events and returns them as a batch, or ctx's error, or ErrExpired when the watcher
// fell behind the ring, ErrRemoved when the kind was removed, or ErrStopped. It is called by one goroutine. The slice is valid until the next call.
func (w *Watcher) Next(ctx context.Context) ([]Event, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
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
		// Who closes, or stops the cache, rings afterwards.
		select {
		case <-w.c.stopped:
			return nil, ErrStopped
		default:
		}
		if w.closed.Load() {
			return nil, ErrStopped
		}
		if w.t.removed.Load() {
			return nil, ErrRemoved
		}
		// What is published after the ring was read rings the bell. No channel here is shared with other watchers, so
		// that they do not wait for each other.
		select {
		case <-w.bell:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// read moves on by at most watchBatch changes and leaves those that concern the watcher in w.events.
func (w *Watcher) read() (more bool, err error) {
	rev := w.c.rev.Load() // what is beyond it is in the ring, but not yet published
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
	clear(w.changes) // an idle watcher holds no old objects
	return more, nil
}

// see is the change as one with the matcher's selector sees it.
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

// Progress is the revision up to which Next has told everything, for bookmarks: the cache's revision when
// the watcher has nothing left to read, also if its kind did not change. It is called by Next's goroutine.
func (w *Watcher) Progress() int64 {
	rev := w.c.rev.Load()
	w.t.mu.RLock()
	defer w.t.mu.RUnlock()
	if r := &w.t.ring; w.cursor < r.first || len(w.missed) > 0 {
		return w.told
	} else if w.cursor < r.next {
		rev = min(rev, r.at(w.cursor).rev-1)
	}
	w.told = max(w.told, rev)
	return w.told
}
