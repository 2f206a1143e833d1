package workers

import (
	"bufio"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

const (
	// streamWindow bounds the unanswered messages of a connection. Further ones are not read.
	streamWindow = 256
	// streamBatch bounds the messages that are queued together.
	streamBatch = 64
	// streamLife is the time after which clients must authenticate again on another connection, streamGrace the time
	// they have to leave.
	streamLife  = 5 * time.Minute
	streamGrace = time.Minute
	// streamRecheck is how long an authorization is cached.
	streamRecheck = 10 * time.Second
	// streamStall is how long a client may take to send the rest of a message.
	streamStall = 30 * time.Second
)

// messageStream is a connection of a sender (package frame). One goroutine reads and queues messages, one writes
// answers.
type messageStream struct {
	sender
	req    *http.Request
	ctx    context.Context
	cancel context.CancelFunc
	conn   net.Conn
	in     *bufio.Reader
	out    *bufio.Writer

	slots   chan struct{}      // one element per unanswered message
	answers chan *streamAnswer // has room for all of them
	open    sync.WaitGroup     // unanswered messages

	mu      sync.Mutex
	pending map[string]*streamMessage

	// The following fields belong to the reading goroutine.
	to      address
	since   time.Time // when to was looked up
	checked time.Time
	batch   []*streamMessage // messages that are not queued yet
	leave   *time.Timer      // ends the connection of a client that does not leave
	last    bool             // the sender has sent its last message
}

type streamAnswer struct {
	frame.Head
	payload []byte
	release func() // may be nil
}

// streamed reports whether a sender asks for a connection for many messages.
func streamed(req *http.Request) bool {
	return strings.EqualFold(req.Header.Get("Upgrade"), frame.SendProtocol)
}

func (s sender) serveStream(w http.ResponseWriter, req *http.Request) error {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return apierrors.NewBadRequest("Upgrade: " + frame.SendProtocol + " needs HTTP/1.1")
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{})
	c := newMessageStream(s, req, conn, buffered.Reader)
	defer c.cancel()
	defer context.AfterFunc(c.ctx, func() { _ = conn.Close() })()
	var writing, ending sync.WaitGroup
	writing.Go(c.write)
	c.read(&ending)
	c.leave.Stop()
	c.cancel()
	for _, m := range c.without() {
		m.cancel()
	}
	c.open.Wait()
	ending.Wait()
	close(c.answers)
	writing.Wait()
	return nil
}

func (c *messageStream) without() []*streamMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.pending))
}

func newMessageStream(s sender, req *http.Request, conn net.Conn, in *bufio.Reader) *messageStream {
	ctx, cancel := context.WithCancel(req.Context())
	c := &messageStream{
		sender: s, req: req, ctx: ctx, cancel: cancel, conn: conn, in: in, out: bufio.NewWriterSize(conn, 16<<10),
		checked: time.Now(),
		slots:   make(chan struct{}, streamWindow), answers: make(chan *streamAnswer, streamWindow+1),
		pending: map[string]*streamMessage{}, leave: time.AfterFunc(streamLife+streamGrace, cancel),
	}
	_, _ = c.out.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + frame.SendProtocol +
		"\r\n" +
		frame.HeaderSlots + ": " + strconv.Itoa(streamWindow) + "\r\n\r\n")
	return c
}

func (c *messageStream) write() {
	life := time.NewTimer(streamLife)
	defer life.Stop()
	err := c.out.Flush()
	for {
		var a *streamAnswer
		select {
		case a = <-c.answers:
			if a == nil {
				return
			}
		case <-life.C:
			a = &streamAnswer{Head: frame.Head{Kind: frame.Last}}
		}
		if err == nil {
			err = frame.Write(c.out, &a.Head, a.payload)
		}
		if err == nil && len(c.answers) == 0 {
			err = c.out.Flush()
		}
		if a.release != nil {
			a.release()
		}
		if a.Kind != frame.Last {
			<-c.slots
			c.open.Done()
		}
		if err != nil || a.Kind == frame.Last && a.ID == farewell {
			c.cancel()
		}
	}
}

const farewell = "end"

// read accepts messages until the connection ends.
func (c *messageStream) read(ending *sync.WaitGroup) {
	defer c.deliver()
	for {
		if len(c.batch) > 0 && !frame.Buffered(c.in) {
			c.deliver()
		}
		h, size, err := frame.Read(c.in)
		if err != nil {
			return
		}
		switch h.Kind {
		case frame.Request, frame.Note:
			if c.last || !c.message(&h, size) {
				return
			}
		case frame.Cancel:
			c.deliver()
			c.mu.Lock()
			m := c.pending[h.ID]
			c.mu.Unlock()
			if m != nil {
				m.cancel()
			}
		case frame.Last:
			if c.last {
				return
			}
			c.deliver()
			c.last = true
			c.leave.Stop() // the deadlines of its messages end the connection
			ending.Go(func() {
				c.open.Wait()
				c.answers <- &streamAnswer{Head: frame.Head{Kind: frame.Last, ID: farewell}} // the channel has room
			})
		default:
			return
		}
		if h.Kind != frame.Request && h.Kind != frame.Note && size > 0 {
			return
		}
	}
}

// message accepts a message. It returns false if the connection is unusable.
func (c *messageStream) message(h *frame.Head, size int) bool {
	c.mu.Lock()
	_, known := c.pending[h.ID]
	c.mu.Unlock()
	if known {
		return false // an answer could not be assigned
	}
	select {
	case c.slots <- struct{}{}:
	default:
		c.deliver()
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return false
		}
	}
	c.open.Add(1)
	m := &streamMessage{of: c, id: h.ID, contentType: h.ContentType, trace: validTrace(h.Trace), dedupID: h.DedupID,
		orderKey: h.OrderKey, wait: h.Kind == frame.Request}
	c.mu.Lock()
	c.pending[m.id] = m
	c.mu.Unlock()
	if err := c.on.Hold(size); err != nil {
		_, readErr := io.CopyN(io.Discard, c.in, int64(size))
		m.fail(err)
		return readErr == nil
	}
	m.held = size
	m.payload = make([]byte, size)
	if c.in.Buffered() < size {
		_ = c.conn.SetReadDeadline(time.Now().Add(streamStall))
		defer func() { _ = c.conn.SetReadDeadline(time.Time{}) }()
	}
	if _, err := io.ReadFull(c.in, m.payload); err != nil {
		m.fail(apierrors.NewBadRequest("the message broke off"))
		return false
	}
	if err := c.check(m, h.Deadline); err != nil {
		m.fail(err)
		return true
	}
	if c.batch = append(c.batch, m); len(c.batch) == streamBatch {
		c.deliver()
	}
	return true
}

// check validates a message, and rechecks the sender's permission if the cached one has expired.
func (c *messageStream) check(m *streamMessage, millis int64) error {
	now := time.Now()
	wait := time.Duration(millis) * time.Millisecond
	switch {
	case len(m.contentType) > maxContentType || len(m.id) > 64:
		return apierrors.NewBadRequest("content type and ID have at most " + strconv.Itoa(maxContentType) + " and 64 bytes")
	case millis < 0 || millis > maxWait.Milliseconds():
		return apierrors.NewBadRequest("timeout must be a duration above 0 and up to " + maxWait.String())
	case wait == 0:
		wait = defaultWait
	}
	if m.dedupID != "" {
		if err := checkDedupID(m.dedupID, m.wait); err != nil {
			return err
		}
	}
	if m.orderKey != "" {
		if err := checkText("key", m.orderKey, workers.MaxOrderKey); err != nil {
			return err
		}
	}
	if m.contentType == "" {
		m.contentType = "application/octet-stream"
	}
	if m.deadline = now.Add(wait); now.Sub(c.checked) < streamRecheck {
		return nil
	}
	if err := c.on.Recheck(c.req.Context()); err != nil {
		return err
	}
	c.checked = now
	return nil
}
