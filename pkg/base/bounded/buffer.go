package bounded

import (
	"bytes"
	"sync"
)

// Buffer keeps the first bytes written to it, up to a limit, and drops the rest without an error, so that a program
// that writes to it is not stopped. It is safe for concurrent use.
type Buffer struct {
	mu    sync.Mutex
	kept  bytes.Buffer // not embedded: io.Copy would use its ReadFrom, which has no limit
	limit int
}

// NewBuffer returns an empty Buffer for at most limit bytes.
func NewBuffer(limit int) *Buffer { return &Buffer{limit: limit} }

// Write reports all of p as written, even if it keeps less.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := b.limit - b.kept.Len(); room > 0 {
		b.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// Bytes returns a copy of the kept bytes.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.kept.Bytes())
}

// String returns the kept bytes.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept.String()
}
