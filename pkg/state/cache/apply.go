package cache

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

const (
	loadPage       = 5000 // values per page of a full read
	parallelDecode = 32   // from this many values on, decoding runs in parallel
)

// decode turns stored values into entries. Values that cannot be decoded are logged, skipped, and recorded in broken,
// which may be nil.
func (c *Cache) decode(n int, broken *unreadable, value func(int) (kind.KV, bool)) []*Entry {
	entries := make([]*Entry, n)
	h := c.caches.Load()
	one := func(i int) {
		kv, ok := value(i)
		if !ok {
			return
		}
		t := h.of(kv.Key)
		if t == nil {
			return
		}
		var obj client.Object
		err := kv.Err
		if err == nil {
			obj = c.take(kv)
		}
		if obj == nil && err == nil {
			obj, err = t.row.Decode(kv.Value, kv.Revision)
		}
		if err != nil {
			c.cfg.Logger.Error("could not decode stored object", "key", kv.Key, "error", err)
			broken.add(kv, err)
			return
		}
		broken.drop(kv.Key, kv.Revision)
		if t.row.Pack != nil {
			obj = t.row.Pack(obj)
		}
		e := &Entry{
			Object:   obj,
			Key:      kv.Key,
			Revision: kv.Revision,
			row:      t.row,
			keeper:   &c.encodings,
			stored:   sumOf(kv.Value),
		}
		if c.cfg.CheckImmutable {
			e.sum = e.hash()
		}
		entries[i] = e
	}
	workers := runtime.GOMAXPROCS(0)
	if n < parallelDecode || workers == 1 {
		for i := range n {
			one(i)
		}
		return entries
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w * n / workers; i < (w+1)*n/workers; i++ {
				one(i)
			}
		})
	}
	wg.Wait()
	return entries
}

func (c *Cache) applyBatch(b kind.Batch) {
	if b.Revision <= c.rev.Load() {
		return
	}
	if len(b.Events) > 0 {
		entries := c.decode(len(b.Events), &c.unreadable, func(i int) (kind.KV, bool) {
			return b.Events[i].KV, !b.Events[i].Deleted
		})
		h := c.caches.Load()
		// The latest staged state of each key, for batches that change a key more than once.
		var seen map[string]*Entry
		if len(b.Events) > 1 {
			seen = make(map[string]*Entry, len(b.Events))
		}
		for i := range b.Events {
			ev := &b.Events[i]
			t := h.of(ev.Key)
			if t == nil {
				continue
			}
			if ev.Deleted {
				c.unreadable.drop(ev.Key, ev.Revision)
			}
			if t.join != nil {
				t.join.buffer(ev.Key, ev.Revision, entries[i])
				continue
			}
			prev, staged := seen[ev.Key]
			if !staged {
				prev = t.get(t.tail(ev.Key))
			}
			if seen != nil {
				seen[ev.Key] = entries[i]
			}
			c.stage(t, &change{rev: ev.Revision, entry: entries[i], prev: prev})
		}
	}
	c.commit(b.Revision, true)
}

func (c *Cache) stage(t *kindCache, ch *change) {
	if ch.entry == nil && ch.prev == nil {
		return
	}
	if len(t.staged) == 0 {
		c.touched = append(c.touched, t)
	}
	t.staged = append(t.staged, ch)
	if ch.prev != nil {
		ch.prev.verify()
	}
}

// commit applies the staged changes, publishes the revision to readers, and then notifies the watchers.
func (c *Cache) commit(rev int64, keep bool) {
	now := time.Now()
	for _, t := range c.touched {
		t.apply(rev, now, keep)
	}
	c.publish(rev)
	for i, t := range c.touched {
		t.notifier.notify()
		c.touched[i] = nil
	}
	c.touched = c.touched[:0]
}

// load reads the whole state at one revision and publishes the differences from the current state as changes.
func (c *Cache) load(ctx context.Context) error {
	for {
		err := c.loadOnce(ctx)
		// A long read may be overtaken by compaction; the next attempt reads at a later revision.
		if !errors.Is(err, kind.ErrCompacted) || ctx.Err() != nil {
			return err
		}
	}
}

func (c *Cache) loadOnce(ctx context.Context) error {
	first := c.rev.Load() == 0
	h := c.caches.Load()
	var changes []*change
	var rev int64
	seen := map[string]bool{}
	c.unreadable.reset()
	for from := ""; ; {
		kvs, at, more, err := c.cfg.Source.Page(ctx, kind.Root, from, loadPage, rev)
		if err != nil {
			return err
		}
		rev = at
		prevs := make([]*Entry, len(kvs))
		for i, kv := range kvs {
			if t := h.of(kv.Key); t != nil && !first {
				seen[kv.Key] = true
				prevs[i] = t.get(t.tail(kv.Key))
			}
		}
		entries := c.decode(len(kvs), &c.unreadable, func(i int) (kind.KV, bool) {
			return kvs[i], prevs[i] == nil || prevs[i].Revision != kvs[i].Revision
		})
		for i, e := range entries {
			prev := prevs[i]
			switch {
			case e == nil && prev != nil && prev.Revision != kvs[i].Revision: // no longer readable
				changes = append(changes, &change{rev: kvs[i].Revision, prev: prev})
			case e == nil: // unchanged, of a kind that is not served, or not readable
			case prev != nil && prev.Object.GetUID() != e.Object.GetUID():
				changes = append(changes, &change{rev: e.Revision - 1, prev: prev}, &change{rev: e.Revision, entry: e})
			default:
				changes = append(changes, &change{rev: e.Revision, entry: e, prev: prev})
			}
		}
		if !more {
			break
		}
		from = kvs[len(kvs)-1].Key + "\x00"
	}
	if rev < c.rev.Load() {
		return errors.New("revision went backwards: the store was replaced or restored")
	}
	if !first {
		for _, t := range h.all {
			t.snapshot().each("", func(e *Entry) bool {
				if !seen[e.Key] {
					changes = append(changes, &change{rev: rev, prev: e})
				}
				return true
			})
		}
		slices.SortStableFunc(changes, func(a, b *change) int { return int(a.rev - b.rev) })
	}
	for _, ch := range changes {
		e := ch.entry
		if e == nil {
			e = ch.prev
		}
		if t := h.of(e.Key); t.join == nil { // a kind that is not readable yet is loaded separately
			c.stage(t, ch)
		}
	}
	for _, t := range h.all {
		t.missedBefore(rev)
	}
	if first {
		for _, t := range h.all {
			t.mu.Lock()
			t.ring.floor = rev // no reader has seen an earlier revision
			t.mu.Unlock()
		}
	}
	if first {
		c.loaded.Store(rev)
	}
	c.commit(rev, !first)
	return nil
}
