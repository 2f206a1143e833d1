package cache

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"weak"
)

// keptEncodings is how many bytes of encodings entries keep together, by default.
const keptEncodings = 16 << 20

// keeper bounds the encodings that entries keep. Readers of an encoding that is kept take no lock; the one that was not
// read for longest, by second chance, is dropped first, and is made again when it is wanted. After each garbage
// collection the older half is dropped as far as it was not read. It does not keep entries alive.
type keeper struct {
	limit int64

	mu    sync.Mutex
	used  int64
	queue []kept
	first int // of queue
}

// kept is an encoding of an entry, which may be gone, and its encoding with it.
type kept struct {
	entry weak.Pointer[Entry]
	which encoding
	size  int64
}

// encoding is one of those that an entry has.
type encoding uint8

const (
	encodingJSON encoding = iota
	encodingProto
	encodings
)

// keptOverhead is about what an encoding takes besides its bytes.
const keptOverhead = 96

// keep keeps b as an encoding of e unless there is one already, and returns the one that counts.
func (e *Entry) keep(which encoding, b []byte) []byte {
	if e.row.Pack != nil {
		return b
	}
	at := &e.kept[which]
	if !at.CompareAndSwap(nil, &b) {
		if other := at.Load(); other != nil {
			return *other
		}
		return b
	}
	if e.keeper != nil {
		e.keeper.add(e, which, int64(len(b))+keptOverhead)
	}
	return b
}

// keepCopy is keep of a copy of b, if there is room.
func (e *Entry) keepCopy(which encoding, b []byte) []byte {
	if e.row.Pack != nil || !e.keeper.fits(int64(len(b))) {
		return b
	}
	return e.keep(which, bytes.Clone(b))
}

// load returns an encoding if it is kept.
func (e *Entry) load(which encoding) []byte {
	b := e.kept[which].Load()
	if b == nil {
		return nil
	}
	if !e.read.Load() { // the line of the cache stays shared
		e.read.Store(true)
	}
	return *b
}

func (k *keeper) add(e *Entry, which encoding, size int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used += size
	k.queue = append(k.queue, kept{weak.Make(e), which, size})
	for spared := 0; k.used > k.limit && k.first < len(k.queue); {
		if k.next(spared < mostSpared) {
			spared++
		}
	}
	k.tidy()
}

// next drops the first of the queue, or spares it if that is allowed and it was read: then it is the last. It is called
// with the lock held.
func (k *keeper) next(spare bool) (spared bool) {
	oldest := k.queue[k.first]
	k.queue[k.first] = kept{}
	k.first++
	old := oldest.entry.Value()
	if old != nil && spare && old.read.Swap(false) {
		k.queue = append(k.queue, oldest)
		return true
	}
	if old != nil {
		old.kept[oldest.which].Store(nil)
	}
	k.used -= oldest.size
	return false
}

// tidy releases the space of entries that were dropped from the queue. It is called with the lock held.
func (k *keeper) tidy() {
	if k.first > 1024 && k.first > len(k.queue)/2 {
		k.queue, k.first = append(make([]kept, 0, 2*(len(k.queue)-k.first)), k.queue[k.first:]...), 0
	}
}

// fits reports whether an encoding of a size can be kept without dropping others; never by a keeper that is nil.
func (k *keeper) fits(size int64) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used+size+keptOverhead <= k.limit
}

// forget drops the older half as far as it was not read since it was last looked at, each time that something is
// collected, until ctx ends.
func (k *keeper) forget(ctx context.Context, collected <-chan struct{}) {
	for {
		select {
		case <-collected:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		left := (len(k.queue) - k.first + 1) / 2
		k.mu.Unlock()
		for left > 0 {
			left = k.pass(left)
		}
	}
}

// mostPassed is how many encodings are looked at while the lock is held.
const mostPassed = 128

// pass looks at the oldest of the queue, mostPassed at most, and returns how many of n are left.
func (k *keeper) pass(n int) (left int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for now := min(n, mostPassed, len(k.queue)-k.first); now > 0; now-- {
		k.next(true)
		n--
	}
	k.tidy()
	if k.first == len(k.queue) {
		k.queue, k.first = nil, 0
		return 0
	}
	return n
}

// mostSpared is how many encodings get a second chance for each one that is added, so that adding takes bounded time.
const mostSpared = 16

// size returns the bytes that are kept.
func (k *keeper) size() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used
}

// slots are the encodings of an entry.
type slots [encodings]atomic.Pointer[[]byte]
