package cache

import (
	"math"
	"slices"
	"sort"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Page is a part of a list, in key order.
type Page struct {
	Entries []*Entry
	// Revision is the revision of the whole list.
	Revision int64
	// More reports that further entries match. Remaining is their number, or -1 if it is unknown because of selectors.
	More      bool
	Remaining int64
}

// mostPinned is how many older snapshots of a kind are kept for lists in pages; beyond it the oldest is dropped.
const mostPinned = 8

// Page lists up to limit (0: all) matching entries with keys >= from, at revision rev (0: now). Its time is
// proportional to the result, not to the kind's objects, unless selectors reject many.
//
// It returns false if the state at rev is not in memory. A state is in memory until the kind changes. Afterwards a
// state whose list began with Page stays, within mostPinned, while the ring holds the changes since.
func (c *Cache) Page(r *kind.Resource, q Query, from string, limit, rev int64) (Page, bool) {
	t := c.kindCache(r)
	if t == nil {
		return Page{Revision: c.rev.Load()}, rev == 0
	}
	now := c.rev.Load() // before the snapshot, which then has all changes up to it
	s := t.snapshot()
	switch {
	case rev == 0:
		rev = max(now, s.rev)
	case !s.is(rev, max(now, s.rev)):
		if s = t.pinnedAt(rev); s == nil {
			return Page{}, false
		}
	}
	m := newMatcher(r, q)
	p := s.page(&m, from, limit)
	p.Revision = rev
	if p.More && !s.paged.Load() {
		s.paged.Store(true)
	}
	return p, true
}

// is reports whether the snapshot is the kind's state at rev. last is the last revision up to which the kind is known
// not to have changed.
func (s *snapshot) is(rev, last int64) bool { return max(s.rev, s.known) <= rev && rev <= last }

func (s *snapshot) page(m *matcher, from string, limit int64) Page {
	first := m.prefix
	if head := len(kind.Root) + len(m.row.Storage.Keys) + 1; len(from) > head {
		first = max(first, from[head:])
	}
	if limit <= 0 {
		limit = math.MaxInt64
	}
	_, single := m.key()
	if indexed := m.index != nil && s.indexes[m.index.Field] != nil; m.none || single || indexed {
		entries := s.list(m)
		entries = entries[sort.Search(len(entries), func(i int) bool { return entries[i].tail() >= first }):]
		if int64(len(entries)) <= limit {
			return Page{Entries: entries}
		}
		return Page{Entries: slices.Clip(entries[:limit]), More: true, Remaining: -1}
	}
	all := m.labels == nil && m.fields == nil && m.name == ""
	var p Page
	s.eachFrom(m.prefix, first, func(e *Entry) bool {
		if !all && !m.match(e) {
			return true
		}
		if int64(len(p.Entries)) == limit {
			p.More = true
			return false
		}
		if p.Entries == nil && all && m.prefix == "" { // otherwise most entries may be skipped
			p.Entries = make([]*Entry, 0, min(limit, int64(s.objects.Len())))
		}
		p.Entries = append(p.Entries, e)
		return true
	})
	if p.More {
		if p.Remaining = -1; all {
			p.Remaining = int64(s.rank(end(m.prefix)) - s.rank(p.Entries[limit-1].tail()) - 1)
		}
	}
	return p
}

// rank is the number of entries whose tail is less than the given one; all entries for an empty tail.
func (s *snapshot) rank(tail string) int {
	if tail == "" {
		return s.objects.Len()
	}
	return sort.Search(s.objects.Len(), func(i int) bool {
		at, _, _ := s.objects.GetAt(i)
		return at >= tail
	})
}

// end is the least string greater than all strings with the prefix, "" if there is none. A prefix is empty or ends
// with a slash.
func end(prefix string) string {
	if prefix == "" {
		return ""
	}
	return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
}

// pin keeps the snapshot that the staged changes replace, if a list in pages reads it. The caller holds t.mu.
func (t *kindCache) pin() {
	s := t.frozen.Swap(nil)
	if s == nil || !s.paged.Load() || len(t.staged) == 0 {
		return
	}
	s.until = t.staged[0].rev
	if len(t.pinned) == mostPinned {
		t.pinned = slices.Delete(t.pinned, 0, 1)
	}
	t.pinned = append(t.pinned, s)
}

// unpin drops snapshots whose following changes the ring has dropped, so that snapshots keep no objects alive longer
// than the ring does. The caller holds t.mu.
func (t *kindCache) unpin() {
	n := 0
	for n < len(t.pinned) && t.pinned[n].until <= t.ring.floor {
		n++
	}
	if t.pinned = slices.Delete(t.pinned, 0, n); len(t.pinned) == 0 {
		t.pinned = nil
	}
}

func (t *kindCache) pinnedAt(rev int64) *snapshot {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.pinned {
		if s.is(rev, s.until-1) {
			return s
		}
	}
	return nil
}

// missedBefore records that changes before revision rev may have been missed.
func (t *kindCache) missedBefore(rev int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = rev
	t.pinned = nil
	t.frozen.Store(nil)
}
