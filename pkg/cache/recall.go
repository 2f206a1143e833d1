package cache

import (
	"context"
	"time"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// A cache that has just started holds no changes, yet the watches of every client that was connected before want to go on from
// where they were. The changes are still in the store, so the first such watch fetches them, once, into the rings, where they
// stay as long as others do.
const (
	// recallRings is how many revisions are fetched, as a multiple of RingSize, and recallBytes the size of their values.
	// A watch from before that gets ErrExpired.
	recallRings = 2
	recallBytes = 32 << 20
	// recallPatience bounds how long a watch waits for that.
	recallPatience = 10 * time.Second
	// firstSequence leaves room for the changes that come before the first.
	firstSequence = 1 << 32
)

// recall fetches the changes before the cache's first state, and reports whether there may now be some after rev. Calls that come
// while another fetches wait for it.
func (c *Cache) recall(rev int64) bool {
	loaded := c.loaded.Load()
	if loaded == 0 || rev >= loaded {
		return false
	}
	c.recallOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), recallPatience)
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
			c.cfg.Logger.Warn("cache: could not read the history from before the start, so that watches begin anew", "error", err)
			return
		}
		c.cfg.Logger.Debug("cache: read the history from before the start", "changes", n, "took", time.Since(began))
	})
	return true
}

func (c *Cache) fetch(ctx context.Context, loaded int64) (int, error) {
	events, begin, err := c.cfg.Source.History(ctx, kind.Root, max(0, loaded-recallRings*int64(c.cfg.RingSize)), loaded, recallBytes)
	if err != nil {
		return 0, err
	}
	h := c.held.Load()
	tables := make([]*table, len(events))
	before := make([]int, len(events)) // the event of the same key before this one, or -1
	last := map[string]int{}
	for i, ev := range events {
		tables[i], before[i] = h.of(ev.Key), -1
		if j, ok := last[ev.Key]; ok {
			before[i] = j
		}
		last[ev.Key] = i
	}
	entries := c.decode(len(events), nil, func(i int) (kind.KV, bool) { return events[i].KV, !events[i].Deleted })
	prevs := c.decode(len(events), nil, func(i int) (kind.KV, bool) { return events[i].Prev, before[i] < 0 && events[i].Prev.Key != "" })
	byTable := make(map[*table][]*change, len(h.all))
	now := time.Now()
	for i := range events {
		if before[i] >= 0 {
			prevs[i] = entries[before[i]]
		}
		if t := tables[i]; t != nil && (entries[i] != nil || prevs[i] != nil) {
			byTable[t] = append(byTable[t], &change{rev: events[i].Revision, entry: entries[i], prev: prevs[i], at: now})
		}
	}
	for _, t := range h.all {
		t.mu.Lock()
		// A ring that has let go of changes since the start would have a gap.
		if t.ring.floor == loaded {
			t.ring.prepend(byTable[t], begin)
		}
		t.mu.Unlock()
	}
	select {
	case c.recalled <- struct{}{}:
	default:
	}
	return len(events), nil
}

// prepend puts changes, which are all there were after revision begin, before those that the ring holds. Those that it has no
// room for, the oldest, are left out.
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
