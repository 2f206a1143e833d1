package cache

import (
	"bytes"
	"sync"
)

const (
	// LongList is the number of objects above which a list keeps encodings only while there is room. A list longer
	// than the keeper's limit would otherwise evict all other encodings and, in turn, its own.
	LongList = 100
	// scratchKept is the size in bytes of the largest scratch that is reused.
	scratchKept = 64 << 10
)

// Scratch is the buffer for encodings of a long list that are not kept. Its content is valid until the next encoding.
type Scratch struct {
	proto []byte
	json  bytes.Buffer
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }} //nolint:gochecknoglobals // a pool

// ScratchFor returns the scratch for a list of n objects, nil unless n > LongList. Call done after the list.
func ScratchFor(n int) (s *Scratch, done func()) {
	if n <= LongList {
		return nil, func() {}
	}
	s = scratches.Get().(*Scratch)
	return s, func() {
		if cap(s.proto) <= scratchKept && s.json.Cap() <= scratchKept {
			scratches.Put(s)
		}
	}
}
