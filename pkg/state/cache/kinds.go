package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// kindCaches is the immutable set of kinds cached at one moment.
type kindCaches struct {
	all       []*kindCache // readable kinds
	byStorage map[*kind.Storage]*kindCache
	byKeys    map[string]*kindCache // by Storage.Keys, including kinds being loaded
}

// of returns the cache for a storage key, or nil if its kind is not cached.
func (h *kindCaches) of(key string) *kindCache {
	rest, ok := strings.CutPrefix(key, kind.Root)
	if !ok {
		return nil
	}
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return nil
	}
	if t := h.byKeys[rest[:i]]; t != nil {
		return t
	}
	if j := strings.IndexByte(rest[i+1:], '/'); j >= 0 {
		return h.byKeys[rest[:i+1+j]]
	}
	return nil
}

func (h *kindCaches) clone() *kindCaches {
	n := &kindCaches{all: slices.Clone(h.all), byStorage: maps.Clone(h.byStorage), byKeys: maps.Clone(h.byKeys)}
	if n.byStorage == nil {
		n.byStorage, n.byKeys = map[*kind.Storage]*kindCache{}, map[string]*kindCache{}
	}
	return n
}

func (h *kindCaches) with(kinds ...*kindCache) *kindCaches {
	n := h.clone()
	for _, t := range kinds {
		n.all = append(n.all, t)
		n.byStorage[t.row.Storage], n.byKeys[t.row.Storage.Keys] = t, t
	}
	return n
}

// stored lists the rows of the stored versions, one per storage.
func stored(t *kind.Table) []*kind.Resource {
	seen := map[*kind.Storage]bool{}
	var rows []*kind.Resource
	for _, r := range t.All() {
		if !seen[r.Storage] {
			seen[r.Storage] = true
			rows = append(rows, r.Stored())
		}
	}
	return rows
}

// kinds coordinates adding and removing kinds while the cache runs.
//
// A new kind is loaded concurrently with the stream of changes: from the revision at which it joined, its changes are
// buffered while its objects at that revision are read; then the buffered changes are applied. Readers of other kinds
// are not blocked.
type kinds struct {
	mu          sync.Mutex // guards running, and caches while not running
	running     bool       // Run has started
	joins       chan *join // kinds to load
	loads       chan *join // kinds whose load has finished
	loading     sync.WaitGroup
	unsubscribe func()
}

// join is a group of kinds being added.
type join struct {
	kinds []*kindCache
	done  chan error // receives one value

	from     int64            // the revision at which the kinds joined
	buffered []bufferedChange // the changes after it; owned by the applying goroutine
	entries  [][]*Entry       // the objects read, by kind
	err      error            // of the read
	cancel   func()           // cancels the read
	stale    bool             // the read must be repeated
}

type bufferedChange struct {
	key   string
	rev   int64
	entry *Entry // nil for a deletion
}

// maxBuffered bounds the buffered changes of one join; beyond it the load is restarted.
const maxBuffered = 100_000

func (j *join) buffer(key string, rev int64, e *Entry) {
	if len(j.buffered) >= maxBuffered {
		j.stale, j.buffered = true, nil
		j.cancel()
	}
	if !j.stale {
		j.buffered = append(j.buffered, bufferedChange{key, rev, e})
	}
}

// Prepare adds the kinds that are new in next, and returns once they are readable. ctx applies only until the load
// begins.
func (c *Cache) Prepare(ctx context.Context, next *kind.Table) error {
	h := c.caches.Load()
	var missing []*kindCache
	for _, r := range stored(next) {
		if h.byStorage[r.Storage] == nil {
			missing = append(missing, newKindCache(r, c.cfg.RingSize))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	c.kinds.mu.Lock()
	if !c.kinds.running {
		c.caches.Store(c.caches.Load().with(missing...))
		c.kinds.mu.Unlock()
		return nil
	}
	c.kinds.mu.Unlock()
	j := &join{kinds: missing, done: make(chan error, 1)}
	select {
	case c.kinds.joins <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.stopped:
		return ErrStopped
	}
	select {
	case err := <-j.done:
		return err
	case <-c.stopped:
		return ErrStopped
	}
}

// Settle removes the kinds that are not in t. Their watches end with ErrRemoved.
func (c *Cache) Settle(t *kind.Table) {
	c.kinds.mu.Lock()
	defer c.kinds.mu.Unlock()
	var gone []*kindCache
	c.replace(func(n *kindCaches) {
		n.all = slices.DeleteFunc(n.all, func(o *kindCache) bool {
			s := o.row.Storage
			if t.Holds(s) {
				return false
			}
			gone = append(gone, o)
			delete(n.byStorage, s)
			if n.byKeys[s.Keys] == o {
				delete(n.byKeys, s.Keys)
			}
			return true
		})
	})
	for _, o := range gone {
		if s := o.row.Storage; c.caches.Load().byKeys[s.Keys] == nil {
			c.unreadable.forget(s.Prefix())
		}
		o.removed.Store(true)
		o.notifier.notify()
	}
}

// replace edits a copy of the set of kinds and swaps it in. It retries on concurrent changes, so edit may run
// repeatedly.
func (c *Cache) replace(edit func(*kindCaches)) {
	for {
		was := c.caches.Load()
		n := was.clone()
		edit(n)
		if c.caches.CompareAndSwap(was, n) {
			return
		}
	}
}

// loadFirst loads the initial state. From then on kinds are added by the applying goroutine.
func (c *Cache) loadFirst(ctx context.Context) error {
	c.kinds.mu.Lock()
	c.kinds.running = true
	c.kinds.mu.Unlock()
	return c.load(ctx)
}

// join registers kinds and starts to load them. It runs in the applying goroutine.
func (c *Cache) join(ctx context.Context, j *join) {
	for _, t := range j.kinds {
		t.join = j
	}
	c.replace(func(n *kindCaches) {
		for _, t := range j.kinds {
			n.byKeys[t.row.Storage.Keys] = t
		}
	})
	c.readJoin(ctx, j)
}

// readJoin starts to read the kinds' objects at the current revision; joined takes the result.
func (c *Cache) readJoin(ctx context.Context, j *join) {
	ctx, j.cancel = context.WithCancel(ctx)
	j.from, j.buffered, j.stale, j.err, j.entries = c.rev.Load(), nil, false, nil, nil
	c.kinds.loading.Go(func() {
		defer j.cancel()
		for _, t := range j.kinds {
			entries, err := c.readKind(ctx, t, j.from)
			if err != nil {
				j.err = err
				break
			}
			j.entries = append(j.entries, entries)
		}
		select {
		case c.kinds.loads <- j:
		case <-c.stopped:
		}
	})
}

func (c *Cache) readKind(ctx context.Context, t *kindCache, rev int64) ([]*Entry, error) {
	var all []*Entry
	prefix := t.row.Storage.Prefix()
	for from := ""; ; {
		kvs, _, more, err := c.cfg.Source.Page(ctx, prefix, from, loadPage, rev)
		if err != nil {
			return nil, err
		}
		for _, e := range c.decode(len(kvs), &c.unreadable, func(i int) (kind.KV, bool) { return kvs[i], true }) {
			if e != nil {
				all = append(all, e)
			}
		}
		if !more {
			return all, nil
		}
		from = kvs[len(kvs)-1].Key + "\x00"
	}
}

// joined makes kinds readable once their objects have been read. It runs in the applying goroutine.
func (c *Cache) joined(ctx context.Context, j *join) {
	switch {
	case j.stale, errors.Is(j.err, kind.ErrCompacted), errors.Is(j.err, kind.ErrFuture):
		// ErrFuture: etcd sends the events of a transaction a moment before its revision can be read.
		c.readJoin(ctx, j)
		return
	case j.err != nil:
		c.replace(func(n *kindCaches) {
			for _, t := range j.kinds {
				delete(n.byKeys, t.row.Storage.Keys)
			}
			for _, t := range n.all { // restore the cache that the failed one would have replaced
				n.byKeys[t.row.Storage.Keys] = t
			}
		})
		j.done <- fmt.Errorf("cannot read the stored objects of a new kind: %w", j.err)
		return
	}
	rev := c.rev.Load()
	for i, t := range j.kinds {
		t.join = nil
		for _, e := range j.entries[i] {
			t.staged = append(t.staged, &change{rev: e.Revision, entry: e})
		}
		t.missedBefore(j.from)
		t.mu.Lock()
		t.ring.floor = j.from
		t.mu.Unlock()
		t.apply(j.from, time.Time{}, false)
	}
	h := c.caches.Load()
	for _, p := range j.buffered {
		c.unreadable.drop(p.key, p.rev-1) // the read may have recorded an earlier state
		t := h.of(p.key)
		t.staged = append(t.staged, &change{rev: p.rev, entry: p.entry, prev: t.get(t.tail(p.key))})
		if ch := t.staged[0]; ch.entry != nil || ch.prev != nil {
			t.apply(p.rev, time.Now(), true)
		} else {
			t.staged = t.staged[:0]
		}
	}
	for _, t := range j.kinds {
		t.mu.Lock()
		t.rev = rev
		t.mu.Unlock()
	}
	c.replace(func(n *kindCaches) {
		for _, t := range j.kinds {
			n.all = append(n.all, t)
			n.byStorage[t.row.Storage] = t
		}
	})
	j.done <- nil
}

// restartJoins restarts the loads in progress, because changes from the source were missed. It runs in the applying
// goroutine.
func (c *Cache) restartJoins() {
	for _, t := range c.caches.Load().byKeys {
		if j := t.join; j != nil && !j.stale {
			j.stale, j.buffered = true, nil
			j.cancel()
		}
	}
}

func (t *kindCache) tail(key string) string { return key[len(kind.Root)+len(t.row.Storage.Keys)+1:] }
