package sender

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

const (
	// dialTime bounds connecting, stall the time in which the other side reads nothing.
	dialTime = 10 * time.Second
	stall    = 30 * time.Second
	// mostSlots bounds the unanswered messages that a server can allow.
	mostSlots = 4096
)

type conn struct {
	rw      io.ReadWriteCloser
	slots   chan struct{} // one element per unanswered message
	leaving chan struct{} // closed when it accepts no more messages

	// writers counts the goroutines that wait to write. The last one flushes for all.
	writers atomic.Int32
	writing sync.Mutex
	out     *bufio.Writer

	mu      sync.Mutex
	left    bool // leaving is closed
	next    uint64
	pending map[string]func(Reply, error)
}

// dial connects. Its error is an *Error if there was a response.
func dial(ctx context.Context, client *http.Client, url string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", frame.SendProtocol)
	res, err := client.Do(req) //nolint:bodyclose // conn closes it
	if err != nil {
		return nil, err
	}
	rw, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return nil, errorOf(res.StatusCode, text)
	}
	slots, err := strconv.Atoi(res.Header.Get(frame.HeaderSlots))
	if err != nil || slots < 1 {
		_ = rw.Close()
		return nil, fmt.Errorf("the server allows %q messages", res.Header.Get(frame.HeaderSlots))
	}
	return &conn{
		rw:      rw,
		slots:   make(chan struct{}, min(slots, mostSlots)),
		leaving: make(chan struct{}),
		out:     bufio.NewWriterSize(rw, 16<<10),
		pending: map[string]func(Reply, error){},
	}, nil
}

func (c *conn) takes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.left
}

// send sends a message, for which the caller holds a slot. If sent is false, the connection accepts no more messages,
// and done is not called.
func (c *conn) send(ctx context.Context, m Message, wait bool, done func(Reply, error)) (cancel func(), sent bool) {
	h := frame.Head{Kind: frame.Note, ContentType: m.ContentType, Trace: m.Trace, DedupID: m.ID, OrderKey: m.Key}
	if at, ok := ctx.Deadline(); wait {
		h.Kind = frame.Request
		if ok {
			h.Deadline = min(max(time.Until(at), time.Millisecond), maxTimeout).Milliseconds()
		}
	}
	c.mu.Lock()
	if c.left {
		c.mu.Unlock()
		<-c.slots
		return nil, false
	}
	c.next++
	h.ID = strconv.FormatUint(c.next, 36)
	c.pending[h.ID] = done
	c.mu.Unlock()
	c.write(&h, m.Payload)
	return func() { c.write(&frame.Head{Kind: frame.Cancel, ID: h.ID}, nil) }, true
}

// write sends a frame. It flushes unless another writer waits. A failure closes the connection.
func (c *conn) write(h *frame.Head, payload []byte) {
	c.writers.Add(1)
	c.writing.Lock()
	defer c.writing.Unlock()
	others := c.writers.Add(-1) > 0
	if c.out.Available() < frame.MaxHead+len(payload) || !others {
		defer time.AfterFunc(stall, func() { _ = c.rw.Close() }).Stop()
	}
	err := frame.Write(c.out, h, payload)
	if err == nil && !others {
		err = c.out.Flush()
	}
	if err != nil {
		_ = c.rw.Close() // the reader reports it to all senders
	}
}

// leave stops accepting messages. The answers to earlier ones still arrive.
func (c *conn) leave() {
	c.mu.Lock()
	first := !c.left
	if first {
		c.left = true
		close(c.leaving)
	}
	c.mu.Unlock()
	if first {
		c.write(&frame.Head{Kind: frame.Last}, nil)
	}
}

func (c *conn) read() {
	err := c.outcomes()
	_ = c.rw.Close()
	c.mu.Lock()
	if !c.left {
		c.left = true
		close(c.leaving)
	}
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	for _, done := range pending {
		done(Reply{}, lost(err))
		<-c.slots
	}
}

func (c *conn) outcomes() error {
	in := bufio.NewReaderSize(c.rw, 16<<10)
	for {
		h, size, err := frame.Read(in)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(in, payload); err != nil {
			return err
		}
		if h.Kind == frame.Last {
			c.leave()
			continue
		}
		c.mu.Lock()
		done := c.pending[h.ID]
		delete(c.pending, h.ID)
		c.mu.Unlock()
		if done == nil {
			return frame.ErrMalformed
		}
		switch h.Kind {
		case frame.Accepted, frame.Repeated:
			done(Reply{Payload: payload, Duplicate: h.Kind == frame.Repeated}, nil)
		case frame.Reply:
			done(Reply{Payload: payload, ContentType: h.ContentType, Attempt: int(h.Attempt)}, nil)
		case frame.Failure:
			done(Reply{}, errorOf(0, payload))
		default:
			return frame.ErrMalformed
		}
		<-c.slots
	}
}
