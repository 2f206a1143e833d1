package cache

import (
	"slices"
	"sync/atomic"
	"time"
)

// change is one event of one kind, shared by all watchers of the kind.
type change struct {
	rev   int64
	entry *Entry // nil for a deletion
	prev  *Entry // nil for a creation
	// merged is set if there were changes between prev and entry.
	merged bool
	at     time.Time
	gone   atomic.Pointer[Entry]
}

// last is the state before a deletion, with the deletion's revision, for Deleted events.
func (ch *change) last() *Entry {
	if e := ch.gone.Load(); e != nil {
		return e
	}
	ch.gone.CompareAndSwap(nil, ch.prev.at(ch.rev))
	return ch.gone.Load()
}

func (ch *change) key() string {
	if ch.entry != nil {
		return ch.entry.Key
	}
	return ch.prev.Key
}

const ringStart = 16

// ring holds the latest changes of one kind. It grows on demand up to limit; at the limit the oldest change is
// dropped, and a watcher that has not read it yet gets ErrExpired.
type ring struct {
	slots       []*change // len is a power of two, or 0
	first, next uint64    // sequence numbers of the oldest change held, and of the next one to be added
	floor       int64     // the revision of the newest dropped change: no watch can start below
	limit       int       // a power of two
	followers   []*Watcher
}

func (r *ring) at(seq uint64) *change { return r.slots[seq&uint64(len(r.slots)-1)] }

func (r *ring) add(ch *change) {
	if n := int(r.next - r.first); n == len(r.slots) {
		if n >= r.limit {
			r.drop()
		} else {
			r.resize(max(ringStart, 2*n))
		}
	}
	r.slots[r.next&uint64(len(r.slots)-1)] = ch
	r.next++
}

func (r *ring) drop() {
	i := r.first & uint64(len(r.slots)-1)
	for _, w := range r.followers {
		w.miss(r.first, r.slots[i])
	}
	r.floor = r.slots[i].rev
	r.slots[i] = nil
	r.first++
}

func (r *ring) leave(w *Watcher) {
	if i := slices.Index(r.followers, w); i >= 0 {
		r.followers = slices.Delete(r.followers, i, i+1)
	}
}

func (r *ring) resize(size int) {
	slots := make([]*change, size)
	for seq := r.first; seq < r.next; seq++ {
		slots[seq&uint64(size-1)] = r.at(seq)
	}
	r.slots = slots
}

// trim drops changes older than cutoff and releases memory. It returns the time of the oldest change that remains.
func (r *ring) trim(cutoff time.Time) (oldest time.Time) {
	for r.first < r.next && r.at(r.first).at.Before(cutoff) {
		r.drop()
	}
	if r.first == r.next {
		r.slots = nil
		return time.Time{}
	}
	n := len(r.slots)
	for n > ringStart && int(r.next-r.first) <= n/4 {
		n /= 2
	}
	if n < len(r.slots) {
		r.resize(n)
	}
	return r.at(r.first).at
}

// after finds the sequence number of the first change after revision rev.
func (r *ring) after(rev int64) uint64 {
	lo, hi := r.first, r.next
	for lo < hi {
		mid := lo + (hi-lo)/2
		if r.at(mid).rev > rev {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}
