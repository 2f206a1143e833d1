// Package sender sends messages to the Workers of a cluster on a connection that stays, on which many of them and their
// answers follow each other (package frame):
//
//	s := sender.New(client, "https://SERVER:6443/api/v1/namespaces/default/services/echo/message")
//	defer s.Close()
//	reply, err := s.Call(ctx, sender.Message{Payload: []byte("hello")})
//
// It imports only the standard library and package frame. Its invariant: each message has one outcome, a reply or an
// error; an error with the code 502 says that the message may have been handled.
package sender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// MaxPayload is the size limit of messages and replies, in bytes.
const MaxPayload = 1 << 20

// maxTimeout is how long a reply can be waited for.
const maxTimeout = time.Hour

// Message is a message to send.
type Message struct {
	Payload []byte
	// ContentType has at most 256 bytes; empty means application/octet-stream.
	ContentType string
	// Trace is passed on (W3C Trace Context), at most 128 bytes.
	Trace string
}

// Reply is the reply to a message.
type Reply struct {
	Payload     []byte
	ContentType string
	// Attempt counts from 1 how often the message was given to a program.
	Attempt int
}

// Error is the error of a message that was not accepted, or got no reply.
type Error struct {
	// Code is the HTTP status code: 404 for a target that does not exist, 403 if the sender may not send to it, 429 for
	// a full queue, 502 for a receiver that was lost, 503 for none, 504 for none in time, 500 if it failed.
	Code int
	// Reason is short, such as NoReceiver.
	Reason, Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%d): %s", e.Reason, e.Code, e.Message) }

// errorOf makes an error of a response: a Kubernetes Status, or an error of a node's agent.
func errorOf(code int, body []byte) *Error {
	var s struct {
		Code                                     int
		Reason, Message, ErrorType, ErrorMessage string
	}
	_ = json.Unmarshal(body, &s)
	e := &Error{Code: code, Reason: s.Reason + s.ErrorType, Message: s.Message + s.ErrorMessage}
	if code == 0 {
		e.Code = s.Code
	}
	if e.Reason == "" {
		e.Reason = http.StatusText(e.Code)
	}
	return e
}

// lost is the error of messages whose connection broke.
func lost(err error) *Error {
	return &Error{
		Code:    http.StatusBadGateway,
		Reason:  "ReceiverLost",
		Message: "the connection broke before the answer; the message may have been handled: " + err.Error(),
	}
}

// Sender sends messages to one pod or service. It connects when there is a message. Safe for concurrent use.
type Sender struct {
	client *http.Client
	url    string

	mu      sync.Mutex
	conn    *conn
	dialing chan struct{} // closed when the attempt to connect ends; nil if there is none
	closed  bool
	all     sync.WaitGroup // the goroutines of connections
}

// New returns a Sender. The client authenticates and speaks HTTP/1.1; url is the message subresource's.
func New(client *http.Client, url string) *Sender { return &Sender{client: client, url: url} }

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the sender was closed")

// Call sends a message and returns its reply. It waits until the context's deadline, or for a minute.
func (s *Sender) Call(ctx context.Context, m Message) (Reply, error) { return s.send(ctx, m, true) }

// Send sends a message without waiting for a reply. When it returns nil, the message is in the receiver's queue.
func (s *Sender) Send(ctx context.Context, m Message) error {
	_, err := s.send(ctx, m, false)
	return err
}

func (s *Sender) send(ctx context.Context, m Message, wait bool) (Reply, error) {
	done := make(chan result, 1)
	cancel, err := s.Start(ctx, m, wait, func(r Reply, err error) { done <- result{r, err} })
	if err != nil {
		return Reply{}, err
	}
	select {
	case r := <-done:
		return r.Reply, r.err
	case <-ctx.Done():
		cancel()
		return Reply{}, ctx.Err()
	}
}

type result struct {
	Reply
	err error
}

// Start sends a message, waits only until it is on its way, and calls done with its outcome, which must not block; not
// if Start returns an error. With wait, the outcome is the reply, which cancel says is no longer wanted; done is called
// nevertheless. Messages that one goroutine starts arrive in their order, unless the connection breaks between them.
func (s *Sender) Start(ctx context.Context, m Message, wait bool, done func(Reply, error)) (cancel func(), err error) {
	if len(m.Payload) > MaxPayload {
		return nil, &Error{
			Code:    http.StatusRequestEntityTooLarge,
			Reason:  "TooLarge",
			Message: fmt.Sprintf("the message has %d bytes, more than %d", len(m.Payload), MaxPayload),
		}
	}
	for {
		c, err := s.connection(ctx)
		if err != nil {
			return nil, err
		}
		select {
		case c.slots <- struct{}{}:
		case <-c.leaving: // the next message goes to another connection
			continue
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if cancel, sent := c.send(ctx, m, wait, done); sent {
			return cancel, nil
		}
	}
}

// connection returns a connection that takes messages.
func (s *Sender) connection(ctx context.Context) (*conn, error) {
	for {
		s.mu.Lock()
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, ErrClosed
		case s.conn != nil && s.conn.takes():
			defer s.mu.Unlock()
			return s.conn, nil
		case s.dialing == nil:
			return s.connect(ctx)
		}
		other := s.dialing
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// connect is called with the lock held, which it releases.
func (s *Sender) connect(ctx context.Context) (*conn, error) {
	dialing := make(chan struct{})
	s.dialing = dialing
	s.mu.Unlock()
	c, err := dial(ctx, s.client, s.url)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialing = nil
	close(dialing)
	if err != nil {
		return nil, err
	}
	if s.closed {
		_ = c.rw.Close()
		return nil, ErrClosed
	}
	s.conn = c
	s.all.Go(c.read)
	return c, nil
}

// Close sends no more messages, waits for the answers to those on their way, and ends the connection.
func (s *Sender) Close() {
	s.mu.Lock()
	s.closed = true
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.leave()
	}
	s.all.Wait()
}
