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

// held is the tables that there are at one moment. It never changes.
type held struct {
	all       []*table // those that can be read
	byStorage map[*kind.Storage]*table
	byKeys    map[string]*table // by Storage.Keys; those that are being loaded too
}

// of finds the table of a storage key; nil for keys of kinds that are not held.
func (h *held) of(key string) *table {
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

func (h *held) clone() *held {
	n := &held{all: slices.Clone(h.all), byStorage: maps.Clone(h.byStorage), byKeys: maps.Clone(h.byKeys)}
	if n.byStorage == nil {
		n.byStorage, n.byKeys = map[*kind.Storage]*table{}, map[string]*table{}
	}
	return n
}

// with has further tables, which can be read.
func (h *held) with(tables ...*table) *held {
	n := h.clone()
	for _, t := range tables {
		n.all = append(n.all, t)
		n.byStorage[t.row.Storage], n.byKeys[t.row.Storage.Keys] = t, t
	}
	return n
}

// stored lists the rows of a table of kinds by which objects are stored, each once.
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

// kinds is how tables come and go while the cache runs.
//
// A new table is loaded beside the stream of changes: from the revision at which it joined, its changes are put aside, while
// its objects as of that revision are read; then they are put together. Readers of other kinds do not wait for it.
type kinds struct {
	mu          sync.Mutex // guards running, and held while it is not
	running     bool       // Run has begun
	joins       chan *join // tables to be loaded
	loads       chan *join // tables of which a load has ended
	loading     sync.WaitGroup
	unsubscribe func()
}

// join is a group of tables on their way in.
type join struct {
	tables []*table
	done   chan error // gets one value

	from     int64      // the revision at which they joined
	put      []putAside // the changes after it; used by the applying goroutine alone
	entries  [][]*Entry // what was read, of each table
	err      error      // of reading
	cutShort func()     // ends the reading
	stale    bool       // the reading has to be done again
}

type putAside struct {
	key   string
	rev   int64
	entry *Entry // nil for a deletion
}

// maxPutAside bounds the changes put aside; with more, the load begins anew.
const maxPutAside = 100_000

// setAside keeps a change that comes while the table is read.
func (j *join) setAside(key string, rev int64, e *Entry) {
	if len(j.put) >= maxPutAside {
		j.stale, j.put = true, nil
		j.cutShort()
	}
	if !j.stale {
		j.put = append(j.put, putAside{key, rev, e})
	}
}

// Prepare makes tables for the kinds that are new in next, and returns once they can be read.
func (c *Cache) Prepare(ctx context.Context, next *kind.Table) error {
	h := c.held.Load()
	var missing []*table
	for _, r := range stored(next) {
		if h.byStorage[r.Storage] == nil {
			missing = append(missing, newTable(r, c.cfg.RingSize))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	c.kinds.mu.Lock()
	if !c.kinds.running {
		c.held.Store(c.held.Load().with(missing...))
		c.kinds.mu.Unlock()
		return nil
	}
	c.kinds.mu.Unlock()
	j := &join{tables: missing, done: make(chan error, 1)}
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

// Settle drops the tables of kinds that are not in t. Their watches end with ErrRemoved.
func (c *Cache) Settle(t *kind.Table) {
	c.kinds.mu.Lock()
	defer c.kinds.mu.Unlock()
	var gone []*table
	c.replace(func(n *held) {
		n.all = slices.DeleteFunc(n.all, func(o *table) bool {
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
		if s := o.row.Storage; c.held.Load().byKeys[s.Keys] == nil {
			c.unreadable.forget(s.Prefix())
		}
		o.removed.Store(true)
		o.bells.ring()
	}
}

// replace changes what is held, against other changes at the same time.
func (c *Cache) replace(edit func(*held)) {
	for {
		was := c.held.Load()
		n := was.clone()
		edit(n)
		if c.held.CompareAndSwap(was, n) {
			return
		}
	}
}

// begin reads the first state. From then on tables join through the applying goroutine.
func (c *Cache) begin(ctx context.Context) error {
	c.kinds.mu.Lock()
	c.kinds.running = true
	c.kinds.mu.Unlock()
	return c.load(ctx)
}

// join takes tables in and begins to load them. It runs in the applying goroutine.
func (c *Cache) join(ctx context.Context, j *join) {
	for _, t := range j.tables {
		t.join = j
	}
	c.replace(func(n *held) {
		for _, t := range j.tables {
			n.byKeys[t.row.Storage.Keys] = t
		}
	})
	c.readJoin(ctx, j)
}

// readJoin reads what the tables hold at the present revision.
func (c *Cache) readJoin(ctx context.Context, j *join) {
	ctx, j.cutShort = context.WithCancel(ctx)
	j.from, j.put, j.stale, j.err, j.entries = c.rev.Load(), nil, false, nil, nil
	c.kinds.loading.Go(func() {
		defer j.cutShort()
		for _, t := range j.tables {
			entries, err := c.readTable(ctx, t, j.from)
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

func (c *Cache) readTable(ctx context.Context, t *table, rev int64) ([]*Entry, error) {
	var all []*Entry
	prefix := t.row.Storage.Prefix()
	for from := ""; ; {
		kvs, _, remaining, err := c.cfg.Source.Range(ctx, prefix, from, loadPage, rev)
		if err != nil {
			return nil, err
		}
		for _, e := range c.decode(len(kvs), &c.unreadable, func(i int) (kind.KV, bool) { return kvs[i], true }) {
			if e != nil {
				all = append(all, e)
			}
		}
		if remaining == 0 || len(kvs) == 0 {
			return all, nil
		}
		from = kvs[len(kvs)-1].Key + "\x00"
	}
}

// joined makes tables readable whose objects have been read. It runs in the applying goroutine.
func (c *Cache) joined(ctx context.Context, j *join) {
	switch {
	case j.stale, errors.Is(j.err, kind.ErrCompacted):
		c.readJoin(ctx, j)
		return
	case j.err != nil:
		c.replace(func(n *held) {
			for _, t := range j.tables {
				delete(n.byKeys, t.row.Storage.Keys)
			}
			for _, t := range n.all { // such as the one that was to be replaced
				n.byKeys[t.row.Storage.Keys] = t
			}
		})
		j.done <- fmt.Errorf("cannot read what is stored of a new kind: %w", j.err)
		return
	}
	rev := c.rev.Load()
	for i, t := range j.tables {
		t.join = nil
		for _, e := range j.entries[i] {
			t.staged = append(t.staged, &change{rev: e.Revision, entry: e})
		}
		t.mu.Lock()
		t.ring.floor = j.from
		t.mu.Unlock()
		t.apply(j.from, time.Time{}, false)
	}
	h := c.held.Load()
	for _, p := range j.put {
		c.unreadable.drop(p.key, p.rev-1) // the reading may have found what was there before
		t := h.of(p.key)
		t.staged = append(t.staged, &change{rev: p.rev, entry: p.entry, prev: t.get(t.tail(p.key))})
		if ch := t.staged[0]; ch.entry != nil || ch.prev != nil {
			t.apply(p.rev, time.Now(), true)
		} else {
			t.staged = t.staged[:0]
		}
	}
	for _, t := range j.tables {
		t.mu.Lock()
		t.rev = rev
		t.mu.Unlock()
	}
	c.replace(func(n *held) {
		for _, t := range j.tables {
			n.all = append(n.all, t)
			n.byStorage[t.row.Storage] = t
		}
	})
	j.done <- nil
}

// restartJoins makes loads begin anew that are under way, since changes from the source were missed. It runs in the applying goroutine.
func (c *Cache) restartJoins() {
	for _, t := range c.held.Load().byKeys {
		if j := t.join; j != nil && !j.stale {
			j.stale, j.put = true, nil
			j.cutShort()
		}
	}
}

// tail is the part of a key after the kind's prefix.
func (t *table) tail(key string) string { return key[len(kind.Root)+len(t.row.Storage.Keys)+1:] }
