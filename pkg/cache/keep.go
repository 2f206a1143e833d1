package cache

import (
	"sync"
	"sync/atomic"
	"weak"
)

// keptEncodings is how many bytes of encodings entries keep together, by default.
const keptEncodings = 32 << 20

// keeper bounds the encodings that entries keep. Readers of an encoding that is kept take no lock; the one that was not read for longest, by
// second chance, is dropped first, and is made again when it is wanted. It does not keep entries alive.
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
		oldest := k.queue[k.first]
		k.queue[k.first] = kept{}
		k.first++
		old := oldest.entry.Value()
		if old != nil && spared < mostSpared && old.read.Swap(false) {
			spared++
			k.queue = append(k.queue, oldest)
			continue
		}
		if old != nil {
			old.kept[oldest.which].Store(nil)
		}
		k.used -= oldest.size
	}
	if k.first > 1024 && k.first > len(k.queue)/2 {
		k.queue, k.first = append(make([]kept, 0, 2*(len(k.queue)-k.first)), k.queue[k.first:]...), 0
	}
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
