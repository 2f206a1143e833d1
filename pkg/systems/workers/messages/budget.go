package messages

import (
	"errors"
	"io"
	"sync"

	"github.com/coracle-dev/coracle/pkg/base/bounded"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

const (
	// nodeBytes limits the payloads in memory for all pods of the node, podBytes the payloads for one pod.
	nodeBytes = 128 << 20
	podBytes  = 32 << 20
	// overhead is the memory of a message besides its payload, in bytes.
	overhead = 512
)

var errNoMemory = errors.New("the memory for messages is used up")

// budget limits the bytes in use. They count against its parent as well.
type budget struct {
	parent *budget
	limit  int64

	mu   sync.Mutex
	used int64
}

// take reserves n bytes, or returns false and reserves none.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	if b.used+n > b.limit {
		b.mu.Unlock()
		return false
	}
	b.used += n
	b.mu.Unlock()
	if b.parent != nil && !b.parent.take(n) {
		b.give(n, false)
		return false
	}
	return true
}

func (b *budget) give(n int64, parent bool) {
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
	if parent && b.parent != nil {
		b.parent.give(n, true)
	}
}

// payload is bytes that count against a budget until they are released.
type payload struct {
	data  []byte
	bytes *budget
	held  int64
}

func (p *payload) release() {
	if p.bytes != nil && p.held > 0 {
		p.bytes.give(p.held, true)
	}
	p.held = 0
}

// read reads a payload of at most workers.MaxPayload bytes; length is its length, or -1 if it is unknown. Memory is
// reserved before it is allocated. Errors are errNoMemory, *bounded.TooLargeError, or r's.
func (b *budget) read(r io.Reader, length int64) (*payload, error) {
	if length > workers.MaxPayload {
		return nil, &bounded.TooLargeError{Name: "the message", Limit: workers.MaxPayload}
	}
	hold := length
	if hold < 0 {
		hold = firstRead
	}
	if !b.take(hold + overhead) {
		return nil, errNoMemory
	}
	p := &payload{bytes: b, held: hold + overhead, data: make([]byte, 0, hold)}
	for {
		if len(p.data) == cap(p.data) {
			if int64(len(p.data)) == length {
				return p, nil
			}
			more := min(cap(p.data), workers.MaxPayload+1-cap(p.data))
			if !b.take(int64(more)) {
				p.release()
				return nil, errNoMemory
			}
			p.held += int64(more)
			p.data = append(make([]byte, 0, cap(p.data)+more), p.data...)
		}
		n, err := r.Read(p.data[len(p.data):cap(p.data)])
		p.data = p.data[:len(p.data)+n]
		if len(p.data) > workers.MaxPayload {
			p.release()
			return nil, &bounded.TooLargeError{Name: "the message", Limit: workers.MaxPayload}
		}
		if err != nil && int64(len(p.data)) == length || errors.Is(err, io.EOF) && length < 0 {
			return p, nil
		}
		if err != nil {
			p.release()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// firstRead is the number of bytes reserved at first for a payload of unknown length.
const firstRead = 4 << 10
