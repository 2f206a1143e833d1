// Package sender sends messages to the Workers of a cluster over a long-lived connection (package frame):
//
//	s := sender.New(client, "https://SERVER:6443/api/v1/namespaces/default/services/echo/message")
//	defer s.Close()
//	reply, err := s.Call(ctx, sender.Message{Payload: []byte("hello")})
//
// It imports only the standard library and package frame. Its invariant: each message has one outcome, a reply or an
// error. After an error with code 502 the message may have been handled.
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

// MaxPayload bounds messages and replies, in bytes.
const MaxPayload = 1 << 20

// maxTimeout bounds the wait for a reply, maxID the ID and the key of a message, in bytes.
const (
	maxTimeout = time.Hour
	maxID      = 256
)

// Message is a message to send.
type Message struct {
	Payload []byte
	// ContentType is at most 256 bytes; empty means application/octet-stream.
	ContentType string
	// Trace is the traceparent (W3C Trace Context). An invalid one is dropped.
	Trace string
	// ID, if set, has the receiver's queue refuse a repetition of the message: for five minutes it takes another one with
	// this ID for the same. It is at most 256 bytes, and only for messages without a reply.
	ID string
	// Key, if set, has the messages with it handled one at a time, in order. It is at most 256 bytes.
	Key string
}

// Reply is the reply to a message.
type Reply struct {
	Payload     []byte
	ContentType string
	// Attempt counts from 1 how often a program got the message.
	Attempt int
	// Duplicate means that an earlier message had the same ID.
	Duplicate bool
}

// Error is the error of a message that was not accepted, or got no reply.
type Error struct {
	// Code is the HTTP status code: 404 if the target does not exist, 403 if the sender may not send to it, 429 for a
	// full queue, 500 if the handler failed, 502 for a lost receiver, 503 if there is no receiver, 504 for a timeout.
	Code int
	// Reason is a word such as NoReceiver.
	Reason, Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%d): %s", e.Reason, e.Code, e.Message) }

// errorOf converts a response to an error: a Kubernetes Status, or an error of a node's agent.
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

// lost is the error of unanswered messages on a broken connection.
func lost(err error) *Error {
	return &Error{
		Code:    http.StatusBadGateway,
		Reason:  "ReceiverLost",
		Message: "the connection broke before the answer; the message may have been handled: " + err.Error(),
	}
}

// Sender sends messages to one pod or service. It connects with the first message. It is safe for concurrent use.
type Sender struct {
	client *http.Client
	url    string

	mu      sync.Mutex
	conn    *conn
	dialing chan struct{} // closed when the attempt to connect ends; nil without one
	closed  bool
	all     sync.WaitGroup // the goroutines of connections
}

// New returns a Sender. The client must authenticate and use HTTP/1.1; url is the URL of a message subresource.
func New(client *http.Client, url string) *Sender { return &Sender{client: client, url: url} }

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the sender was closed")

// Call sends a message and returns its reply. It waits until the context's deadline, or at most one minute without one.
func (s *Sender) Call(ctx context.Context, m Message) (Reply, error) { return s.send(ctx, m, true) }

// Send sends a message without waiting for a reply. After a nil error the message is in the receiver's queue.
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

// Start sends a message and waits only until it is written. Unless Start returns an error, it calls done once with the
// outcome; done must not block. With wait, the outcome is the reply. cancel tells the receiver that the reply is not
// needed any more; done is still called. Messages that one goroutine starts arrive in order, unless the connection
// breaks.
func (s *Sender) Start(ctx context.Context, m Message, wait bool, done func(Reply, error)) (cancel func(), err error) {
	if len(m.Payload) > MaxPayload {
		return nil, &Error{
			Code:    http.StatusRequestEntityTooLarge,
			Reason:  "TooLarge",
			Message: fmt.Sprintf("the message has %d bytes, more than %d", len(m.Payload), MaxPayload),
		}
	}
	if n := max(len(m.ID), len(m.Key)); n > maxID {
		return nil, &Error{
			Code:    http.StatusBadRequest,
			Reason:  "BadRequest",
			Message: fmt.Sprintf("the ID or key has %d bytes, at most %d are possible: send a hash of it", n, maxID),
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

// connection returns a connection that accepts messages.
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

// connect opens a connection. The caller holds the lock, which connect releases.
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

// Close waits for the answers to messages in flight, and closes the connection. Later messages fail with ErrClosed.
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
