package cache

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// table holds the present objects of one kind, its indexes and its latest changes.
type table struct {
	row *kind.Resource // of the stored version, as it was when the table was made

	mu      sync.RWMutex
	objects btree.Map[string, *Entry] // by Entry.tail
	indexes map[string]*index
	rev     int64 // all changes of the kind up to here are in
	ring    ring

	// frozen is a copy of the above, if one was taken since the last change.
	frozen atomic.Pointer[snapshot]
	// expired counts watchers that fell behind, refused those that asked for too old a revision.
	expired, refused atomic.Uint64
	// bells ring when the kind has changed.
	bells bells

	staged []*change // those of the batch being applied; used by the applying goroutine alone
	join   *join     // while the table is not readable yet; used by the applying goroutine alone

	removed atomic.Bool // the kind is no longer served
}

type index struct {
	values func(client.Object) []string
	keys   btree.Map[string, struct{}] // value, a zero byte, Entry.tail
}

// snapshot is a table at one moment. It never changes.
type snapshot struct {
	objects *btree.Map[string, *Entry]
	indexes map[string]*btree.Map[string, struct{}]
	rev     int64
}

func newTable(row *kind.Resource, limit int) *table {
	t := &table{row: row, indexes: map[string]*index{}, ring: ring{limit: limit, floor: math.MaxInt64, first: firstSequence, next: firstSequence}}
	for _, ix := range row.Indexes {
		t.indexes[ix.Field] = &index{values: func(o client.Object) []string { return []string{ix.Value(o)} }}
	}
	return t
}

// snapshot takes constant time. Later changes copy the nodes that they touch.
func (t *table) snapshot() *snapshot {
	if s := t.frozen.Load(); s != nil {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.frozen.Load(); s != nil {
		return s
	}
	s := &snapshot{objects: t.objects.Copy(), indexes: make(map[string]*btree.Map[string, struct{}], len(t.indexes)), rev: t.rev}
	for name, ix := range t.indexes {
		s.indexes[name] = ix.keys.Copy()
	}
	t.frozen.Store(s)
	return s
}

func (t *table) get(tail string) *Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e, _ := t.objects.Get(tail)
	return e
}

// apply makes the staged changes, which together bring the kind to revision rev.
func (t *table) apply(rev int64, now time.Time, keep bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen.Store(nil)
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
		if !contains(after, v) {
			ix.keys.Delete(v + "\x00" + tail)
		}
	}
	for _, v := range after {
		if !contains(before, v) {
			ix.keys.Set(v+"\x00"+tail, struct{}{})
		}
	}
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// each calls f with the entries whose tail starts with prefix, in key order, until f says no.
func (s *snapshot) each(prefix string, f func(*Entry) bool) {
	s.objects.Ascend(prefix, func(tail string, e *Entry) bool {
		return strings.HasPrefix(tail, prefix) && f(e)
	})
}

// indexed calls f with the entries that the index has under value, in key order.
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

// AddIndex lets ByIndex find the objects of a kind by the values that f gives for them. f must be pure; its
// values must not hold a zero byte. Adding one name twice is an error.
func (c *Cache) AddIndex(r *kind.Resource, name string, f func(client.Object) []string) error {
	t := c.table(r)
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

// ByIndex lists the objects that an index added before has under value, in key order, and the revision of
// that answer. An index that was never added is an error.
func (c *Cache) ByIndex(r *kind.Resource, name, value string) ([]*Entry, int64, error) {
	t := c.table(r)
	if t == nil {
		return nil, 0, fmt.Errorf("%w: %s", ErrUnknownKind, r.GVR())
	}
	rev := c.rev.Load()
	s := t.snapshot()
	if s.indexes[name] == nil {
		return nil, 0, fmt.Errorf("%s has no index %q: add it before the first use", r.GR(), name)
	}
	var entries []*Entry
	s.indexed(name, value, func(e *Entry) { entries = append(entries, e) })
	return entries, max(rev, s.rev), nil
}
