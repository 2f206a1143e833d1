package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

// stream handles messages that arrive as frames, on one connection at a time.
type stream struct {
	handler Handler
	slots   int
	// running counts the messages that are being handled or whose answers are not sent yet.
	running atomic.Int32
	answers chan answer
	// client sends replies in parts to base.
	client *http.Client
	base   string
}

type answer struct {
	frame.Head
	payload []byte
}

// errNoFrames means that the agent only serves the Runtime API.
var errNoFrames = errors.New("the node's agent does not serve frames")

func newStream(h Handler, slots int, api string) *stream {
	return &stream{
		handler: h, slots: slots, answers: make(chan answer, slots), client: newClient(slots),
		base: "http://" + api + runtimePath,
	}
}

// serve handles messages until ctx is done or the pod terminates. It reconnects when a connection breaks.
func (s *stream) serve(ctx context.Context, api string) error {
	defer s.client.CloseIdleConnections()
	var unsent []answer
	known := false
	again := backoff.Backoff{First: firstPause, Most: mostPause}
	for {
		c, err := s.connect(ctx, api)
		if err == nil {
			known = true
			again.Reset()
			var last bool
			if last, unsent = s.exchange(ctx, c, unsent); last {
				return nil
			}
		}
		if errors.Is(err, errNoFrames) && !known {
			return err
		}
		if ctx.Err() != nil && s.running.Load() == 0 {
			return nil
		}
		if !again.Wait(ctx) && err != nil { // nothing is left that could take an answer
			return nil
		}
	}
}

type connection struct {
	net.Conn
	in *bufio.Reader
}

func (s *stream) connect(ctx context.Context, api string) (*connection, error) {
	slots := s.slots - int(s.running.Load())
	if ctx.Err() != nil { // only to send the remaining answers
		slots = 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", api)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n\r\n",
		frame.Path, api, frame.Protocol, frame.HeaderSlots, slots)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	in := bufio.NewReaderSize(conn, 16<<10)
	res, err := http.ReadResponse(in, nil) //nolint:bodyclose // the connection is closed instead
	if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("the node's agent answered %s", res.Status)
		if res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed {
			err = errNoFrames
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return &connection{conn, in}, nil
}

// exchange handles the messages of a connection. It returns whether they were the last ones, and the unsent answers.
func (s *stream) exchange(ctx context.Context, c *connection, unsent []answer) (last bool, rest []answer) {
	defer c.Close()
	ended := make(chan struct{})
	var reading sync.WaitGroup
	reading.Add(1)
	go func() {
		defer reading.Done()
		last = s.read(ctx, c)
		close(ended)
	}()
	rest = s.write(ctx, c, unsent, ended, &last)
	_ = c.Close()
	reading.Wait()
	return last && len(rest) == 0, rest
}

// read starts a handler for each message until the connection breaks. It returns true after the last message.
func (s *stream) read(ctx context.Context, c *connection) (last bool) {
	for {
		h, size, err := frame.Read(c.in)
		if err != nil {
			return false
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(c.in, payload); err != nil {
			return false
		}
		switch h.Kind {
		case frame.Message:
			m := &Message{
				ID:          h.ID,
				Payload:     payload,
				ContentType: h.ContentType,
				Attempt:     int(h.Attempt),
				DeadLetter:  h.DeadLetter,
				Trace:       h.Trace,
				Deadline:    time.UnixMilli(h.Deadline),
				parts:       &parts{client: s.client, url: s.base + "invocation/" + h.ID + "/response"},
			}
			s.running.Add(1)
			go func() {
				s.answers <- s.handler.result(ctx, m) // the channel has room
			}()
		case frame.Refused:
			fmt.Fprintf(os.Stderr, "worker: the answer to message %.64s was refused: %.1024s\n", h.ID, payload)
		case frame.Last:
			return true
		}
	}
}

// write sends answers until the connection breaks, or all messages are answered after the last one. It returns the
// unsent answers.
func (s *stream) write(ctx context.Context, c *connection, unsent []answer, ended <-chan struct{},
	last *bool) []answer {
	out := bufio.NewWriterSize(c, 16<<10)
	stop := ctx.Done()
	put := func(a *answer) error {
		if stop != nil && ctx.Err() != nil { // Last goes before an answer, which would bring another message
			stop = nil
			if err := frame.Write(out, &frame.Head{Kind: frame.Last}, nil); err != nil {
				return err
			}
		}
		return frame.Write(out, &a.Head, a.payload)
	}
	flush := func() bool {
		_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
		if out.Flush() != nil {
			return false
		}
		s.running.Add(-int32(len(unsent)))
		unsent = unsent[:0]
		return true
	}
	for i := range unsent {
		if put(&unsent[i]) != nil {
			return unsent
		}
	}
	if !flush() {
		return unsent
	}
	finished := false // no more messages will come
	for !finished || s.running.Load() > 0 {
		var err error
		select {
		case a := <-s.answers:
			unsent = append(unsent, a)
			err = put(&a)
		case <-stop:
			stop = nil
			err = frame.Write(out, &frame.Head{Kind: frame.Last}, nil)
		case <-ended:
			if ended = nil; !*last {
				return unsent
			}
			finished = true
		}
		if err != nil || len(s.answers) == 0 && !flush() {
			return unsent
		}
	}
	return nil
}
