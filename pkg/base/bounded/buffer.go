package bounded

import (
	"bytes"
	"sync"
)

// Buffer keeps the first bytes that are written to it, up to a limit, and drops the rest without an error, so that a
// program whose output it takes is not stopped by it. It may be used by several goroutines.
type Buffer struct {
	mu    sync.Mutex
	kept  bytes.Buffer // not embedded: io.Copy would use its ReadFrom, which has no limit
	limit int
}

// NewBuffer returns an empty Buffer for at most limit bytes.
func NewBuffer(limit int) *Buffer { return &Buffer{limit: limit} }

// Write reports all of p as written, whatever is kept of it.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := b.limit - b.kept.Len(); room > 0 {
		b.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// Bytes returns a copy of what was kept.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.kept.Bytes())
}

// String returns what was kept.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept.String()
}
