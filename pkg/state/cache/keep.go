package cache

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"weak"
)

const keptEncodings = 16 << 20

// keeper bounds the total size of the encodings that entries keep. Readers of a kept encoding take no lock. At the
// limit, the least recently read encoding is dropped first (second chance), and is made again on demand. After each
// garbage collection the unread encodings of the older half are dropped. A keeper does not keep entries alive.
type keeper struct {
	limit int64

	mu    sync.Mutex
	used  int64
	queue []kept
	first int // of queue
}

// kept is one encoding of an entry. The entry may have been collected, together with its encodings.
type kept struct {
	entry weak.Pointer[Entry]
	which encoding
	size  int64
}

// encoding is an index of Entry.kept.
type encoding uint8

const (
	encodingJSON encoding = iota
	encodingProto
	encodings
)

// keptOverhead estimates the bytes that an encoding takes besides its content.
const keptOverhead = 96

// keep keeps b as an encoding of e and returns it. If there is one already, it returns that one. Objects held packed
// keep no encodings.
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

// keepCopy is keep of a copy of b if there is room. Otherwise it returns b.
func (e *Entry) keepCopy(which encoding, b []byte) []byte {
	if e.row.Pack != nil || !e.keeper.fits(int64(len(b))) {
		return b
	}
	return e.keep(which, bytes.Clone(b))
}

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

// next drops the head of the queue. With spare, an entry that was read since the last check moves to the tail instead.
// The caller holds k.mu.
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

// tidy shrinks the queue's backing array. The caller holds k.mu.
func (k *keeper) tidy() {
	if k.first > 1024 && k.first > len(k.queue)/2 {
		k.queue, k.first = append(make([]kept, 0, 2*(len(k.queue)-k.first)), k.queue[k.first:]...), 0
	}
}

// fits reports whether size more bytes fit without dropping other encodings. Nothing fits a nil keeper.
func (k *keeper) fits(size int64) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used+size+keptOverhead <= k.limit
}

// forget checks the older half of the queue after each signal on collected, and drops encodings that were not read
// since the last check. It ends with ctx.
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

// mostPassed is how many encodings are checked without releasing the lock.
const mostPassed = 128

// pass checks the oldest encodings, mostPassed at most, and returns how many of n remain to be checked.
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

// mostSpared bounds the second chances per added encoding, so that add takes bounded time.
const mostSpared = 16

func (k *keeper) size() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used
}

type slots [encodings]atomic.Pointer[[]byte]
