package cache

import (
	"context"
	"time"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// A cache that has just started has no history, but clients that were connected before the restart resume their
// watches from the last revision they saw. The store still has the changes. The first such watch fetches them, once,
// into the rings, where they are retained like other changes.
const (
	// recallRings is how many revisions are fetched, as a multiple of RingSize; recallBytes bounds the total size of
	// their values. A watch from an earlier revision gets ErrExpired.
	recallRings = 2
	recallBytes = 32 << 20
	// recallTimeout bounds the fetch, and thereby how long a watch waits for it.
	recallTimeout = 10 * time.Second
	// firstSequence leaves room to prepend earlier changes.
	firstSequence = 1 << 32
)

// recall fetches the changes before the initial state, and reports whether changes after rev may now be retained.
// Concurrent calls wait for the fetch.
func (c *Cache) recall(rev int64) bool {
	loaded := c.loaded.Load()
	if loaded == 0 || rev >= loaded {
		return false
	}
	c.recallOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), recallTimeout)
		defer cancel()
		go func() {
			select {
			case <-c.stopped:
				cancel()
			case <-ctx.Done():
			}
		}()
		began := time.Now()
		n, err := c.fetch(ctx, loaded)
		if err != nil {
			c.cfg.Logger.Warn("cache: could not read history from before the start, resumed watches will relist", "error", err)
			return
		}
		c.cfg.Logger.Debug("cache: read history from before the start", "changes", n, "took", time.Since(began))
	})
	return true
}

func (c *Cache) fetch(ctx context.Context, loaded int64) (int, error) {
	events, begin, err := c.cfg.Source.History(ctx, kind.Root, max(0, loaded-recallRings*int64(c.cfg.RingSize)), loaded,
		recallBytes)
	if err != nil {
		return 0, err
	}
	h := c.caches.Load()
	kinds := make([]*kindCache, len(events))
	before := make([]int, len(events)) // index of the previous event of the same key, or -1
	last := map[string]int{}
	for i, ev := range events {
		kinds[i], before[i] = h.of(ev.Key), -1
		if j, ok := last[ev.Key]; ok {
			before[i] = j
		}
		last[ev.Key] = i
	}
	entries := c.decode(len(events), nil, func(i int) (kind.KV, bool) { return events[i].KV, !events[i].Deleted })
	prevs := c.decode(len(events), nil, func(i int) (kind.KV, bool) {
		return events[i].Prev, before[i] < 0 && events[i].Prev.Key != ""
	})
	byKind := make(map[*kindCache][]*change, len(h.all))
	now := time.Now()
	for i := range events {
		if before[i] >= 0 {
			prevs[i] = entries[before[i]]
		}
		if t := kinds[i]; t != nil && (entries[i] != nil || prevs[i] != nil) {
			byKind[t] = append(byKind[t], &change{rev: events[i].Revision, entry: entries[i], prev: prevs[i], at: now})
		}
	}
	for _, t := range h.all {
		t.mu.Lock()
		// A ring that has dropped changes since the start would have a gap.
		if t.ring.floor == loaded {
			t.ring.prepend(byKind[t], begin)
		}
		t.mu.Unlock()
	}
	select {
	case c.recalled <- struct{}{}:
	default:
	}
	return len(events), nil
}

// prepend inserts changes, complete after revision begin, before those in the ring. If they do not fit, it skips the
// oldest.
func (r *ring) prepend(changes []*change, begin int64) {
	held := int(r.next - r.first)
	if over := len(changes) - (r.limit - held); over > 0 {
		begin = changes[over-1].rev
		changes = changes[over:]
	}
	size := max(ringStart, len(r.slots))
	for size < held+len(changes) {
		size *= 2
	}
	if len(changes) > 0 {
		r.resize(size)
		for i, ch := range changes {
			r.slots[(r.first-uint64(len(changes)-i))&uint64(size-1)] = ch
		}
		r.first -= uint64(len(changes))
	}
	r.floor = begin
}
