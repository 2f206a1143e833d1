package cache

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// kindCache holds the current objects of one kind, its indexes and its latest changes.
type kindCache struct {
	row *kind.Resource // of the stored version, as of creation

	mu      sync.RWMutex
	objects btree.Map[string, *Entry] // by Entry.tail
	indexes map[string]*index
	rev     int64 // all changes of the kind up to this revision are applied
	known   int64 // no change after this revision was missed
	ring    ring
	// pinned holds former snapshots that lists in pages still read, oldest first.
	pinned []*snapshot

	// frozen is the snapshot of the current state, if one was taken.
	frozen atomic.Pointer[snapshot]
	// expired counts watchers that fell behind, refused watches from a revision that is too old.
	expired, refused atomic.Uint64
	notifier         notifier

	staged []*change // by the batch being applied; owned by the applying goroutine
	join   *join     // set while the kind is being loaded; owned by the applying goroutine

	removed atomic.Bool // the kind is no longer served
}

type index struct {
	values func(client.Object) []string
	keys   btree.Map[string, struct{}] // value, a zero byte, Entry.tail
}

// snapshot is an immutable copy of a kindCache.
type snapshot struct {
	objects *btree.Map[string, *Entry]
	indexes map[string]*btree.Map[string, struct{}]
	rev     int64
	known   int64
	// paged is set once a list in pages has begun. until is the revision of the next change, set when the snapshot is
	// pinned.
	paged atomic.Bool
	until int64
}

func newKindCache(row *kind.Resource, limit int) *kindCache {
	t := &kindCache{
		row:     row,
		indexes: map[string]*index{},
		ring:    ring{limit: limit, floor: math.MaxInt64, first: firstSequence, next: firstSequence},
	}
	for _, ix := range row.Indexes {
		t.indexes[ix.Field] = &index{values: func(o client.Object) []string { return []string{ix.Value(o)} }}
	}
	return t
}

// snapshot takes constant time: later changes copy the tree nodes they touch.
func (t *kindCache) snapshot() *snapshot {
	if s := t.frozen.Load(); s != nil {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.frozen.Load(); s != nil {
		return s
	}
	s := &snapshot{
		objects: t.objects.Copy(),
		indexes: make(map[string]*btree.Map[string, struct{}], len(t.indexes)),
		rev:     t.rev,
		known:   t.known,
	}
	for name, ix := range t.indexes {
		s.indexes[name] = ix.keys.Copy()
	}
	t.frozen.Store(s)
	return s
}

func (t *kindCache) get(tail string) *Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e, _ := t.objects.Get(tail)
	return e
}

// apply applies the staged changes, which bring the kind to revision rev. With keep they are added to the ring.
func (t *kindCache) apply(rev int64, now time.Time, keep bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pin()
	for i, ch := range t.staged {
		t.staged[i] = nil
		var tail string
		if ch.entry != nil {
			tail = ch.entry.tail()
			t.objects.Set(tail, ch.entry)
		} else {
			tail = ch.prev.tail()
			t.objects.Delete(tail)
		}
		for _, ix := range t.indexes {
			ix.update(tail, ch.prev, ch.entry)
		}
		if keep {
			ch.at = now
			t.ring.add(ch)
		}
	}
	t.staged = t.staged[:0]
	if cap(t.staged) > 1024 {
		t.staged = nil
	}
	t.rev = rev
	t.unpin()
}

func (ix *index) update(tail string, prev, entry *Entry) {
	var before, after []string
	if prev != nil {
		before = ix.values(prev.Object)
	}
	if entry != nil {
		after = ix.values(entry.Object)
	}
	for _, v := range before {
		if !slices.Contains(after, v) {
			ix.keys.Delete(v + "\x00" + tail)
		}
	}
	for _, v := range after {
		if !slices.Contains(before, v) {
			ix.keys.Set(v+"\x00"+tail, struct{}{})
		}
	}
}

// each calls f with the entries whose tail starts with prefix, in key order, until f returns false.
func (s *snapshot) each(prefix string, f func(*Entry) bool) { s.eachFrom(prefix, prefix, f) }

// eachFrom is each, starting at the tail first.
func (s *snapshot) eachFrom(prefix, first string, f func(*Entry) bool) {
	s.objects.Ascend(first, func(tail string, e *Entry) bool {
		return strings.HasPrefix(tail, prefix) && f(e)
	})
}

func (s *snapshot) indexed(name, value string, f func(*Entry)) {
	prefix := value + "\x00"
	s.indexes[name].Ascend(prefix, func(key string, _ struct{}) bool {
		tail, ok := strings.CutPrefix(key, prefix)
		if ok {
			if e, found := s.objects.Get(tail); found {
				f(e)
			}
		}
		return ok
	})
}

// AddIndex adds an index for ByIndex over the values that f returns for an object. f must be pure; its values must not
// contain a zero byte. Adding the same name twice is an error.
func (c *Cache) AddIndex(r *kind.Resource, name string, f func(client.Object) []string) error {
	t := c.kindCache(r)
	if t == nil {
		return fmt.Errorf("%w: %s", ErrUnknownKind, r.GVR())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.indexes[name] != nil {
		return fmt.Errorf("%s already has an index %q", r.GR(), name)
	}
	ix := &index{values: f}
	t.objects.Scan(func(tail string, e *Entry) bool {
		ix.update(tail, nil, e)
		return true
	})
	t.indexes[name] = ix
	t.frozen.Store(nil)
	return nil
}

// ByIndex lists the objects that an index has under value, in key order, and the revision of the result. It fails if
// the index was not added.
func (c *Cache) ByIndex(r *kind.Resource, name, value string) ([]*Entry, int64, error) {
	t := c.kindCache(r)
	if t == nil {
		return nil, 0, fmt.Errorf("%w: %s", ErrUnknownKind, r.GVR())
	}
	rev := c.rev.Load()
	s := t.snapshot()
	if s.indexes[name] == nil {
		return nil, 0, fmt.Errorf("%s has no index %q: call AddIndex first", r.GR(), name)
	}
	var entries []*Entry
	s.indexed(name, value, func(e *Entry) { entries = append(entries, e) })
	return entries, max(rev, s.rev), nil
}
