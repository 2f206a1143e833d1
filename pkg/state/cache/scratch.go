package cache

import (
	"bytes"
	"sync"
)

const (
	// LongList is the number of objects above which a list takes only what room there is for encodings: one that is longer
	// than what can be kept would otherwise take the place of all others' encodings and, in turn, of its own.
	LongList = 100
	// scratchKept is the size of the largest scratch, in bytes, that is used again.
	scratchKept = 64 << 10
)

// Scratch is where encodings of a long list are made that are not kept. What is in it is valid until the next one is
// made.
type Scratch struct {
	proto []byte
	json  bytes.Buffer
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }} //nolint:gochecknoglobals // a pool

// ScratchFor returns the scratch for a list of n objects, which is nil unless it is long. done must be called at the
// end.
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
