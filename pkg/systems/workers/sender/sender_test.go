package sender

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server passes the connections of senders to the test.
type server struct {
	*httptest.Server
	conns chan *peer
}

type peer struct {
	t *testing.T
	net.Conn
	in  *bufio.Reader
	out *bufio.Writer
}

func newServer(t *testing.T, slots int) (*server, *Sender) {
	s := &server{conns: make(chan *peer, 10)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") != frame.SendProtocol {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n\r\n",
			frame.SendProtocol, frame.HeaderSlots, slots)
		_ = rw.Flush()
		s.conns <- &peer{t, conn, rw.Reader, rw.Writer}
	}))
	t.Cleanup(s.Close)
	client := s.Client()
	t.Cleanup(client.CloseIdleConnections)
	return s, New(client, s.URL)
}

func (p *peer) read() (frame.Head, string) {
	h, size, err := frame.Read(p.in)
	require.NoError(p.t, err)
	b := make([]byte, size)
	_, err = io.ReadFull(p.in, b)
	require.NoError(p.t, err)
	return h, string(b)
}

func (p *peer) write(kind frame.Kind, id, text string) {
	require.NoError(p.t,
		frame.Write(p.out, &frame.Head{Kind: kind, ID: id, ContentType: "text/plain", Attempt: 2}, []byte(text)))
	require.NoError(p.t, p.out.Flush())
}

type called struct {
	Reply
	err error
}

func call(s *Sender, text string) chan called {
	got := make(chan called, 1)
	go func() {
		r, err := s.Call(context.Background(), Message{Payload: []byte(text)})
		got <- called{r, err}
	}()
	return got
}

// TestAnswers checks that answers may come in any order.
func TestAnswers(t *testing.T) {
	srv, s := newServer(t, 10)
	first := call(s, "a")
	p := <-srv.conns
	a, text := p.read()
	require.Equal(t, frame.Request, a.Kind)
	require.Equal(t, "a", text)
	second := call(s, "b")
	b, _ := p.read()
	p.write(frame.Reply, b.ID, "to b")
	require.Equal(t, Reply{Payload: []byte("to b"), ContentType: "text/plain", Attempt: 2}, (<-second).Reply)
	p.write(frame.Failure, a.ID, `{"kind":"Status","code":429,"reason":"QueueFull","message":"2 messages wait"}`)
	require.Equal(t, &Error{429, "QueueFull", "2 messages wait"}, (<-first).err)
	sent := make(chan error, 1)
	go func() { sent <- s.Send(context.Background(), Message{Payload: []byte("c")}) }()
	c, _ := p.read()
	require.Equal(t, frame.Note, c.Kind)
	p.write(frame.Accepted, c.ID, "")
	require.NoError(t, <-sent)
	go func() {
		h, _, err := frame.Read(p.in)
		if err == nil && h.Kind == frame.Last {
			_ = p.Close()
		}
	}()
	s.Close()
	_, err := s.Call(t.Context(), Message{})
	require.ErrorIs(t, err, ErrClosed)
}

// TestBrokenConnection checks that unanswered messages fail, and that the next one uses a new connection.
func TestBrokenConnection(t *testing.T) {
	srv, s := newServer(t, 10)
	got := call(s, "a")
	p := <-srv.conns
	p.read()
	require.NoError(t, p.Close())
	var lost *Error
	require.ErrorAs(t, (<-got).err, &lost)
	require.Equal(t, 502, lost.Code)
	got = call(s, "b")
	p = <-srv.conns
	h, _ := p.read()
	p.write(frame.Reply, h.ID, "x")
	require.NoError(t, (<-got).err)
	require.NoError(t, p.Close())
	s.Close()
}

// TestLeaving checks that after the server's Last frame new messages use another connection, and earlier ones still
// get their answers.
func TestLeaving(t *testing.T) {
	srv, s := newServer(t, 10)
	got := call(s, "a")
	p := <-srv.conns
	a, _ := p.read()
	p.write(frame.Last, "", "")
	h, _ := p.read()
	require.Equal(t, frame.Last, h.Kind)
	other := call(s, "b")
	q := <-srv.conns
	b, _ := q.read()
	q.write(frame.Reply, b.ID, "y")
	require.Equal(t, "y", string((<-other).Payload))
	p.write(frame.Reply, a.ID, "x")
	require.Equal(t, "x", string((<-got).Payload))
	require.NoError(t, p.Close())
	require.NoError(t, q.Close())
	s.Close()
}

// TestSlots checks the server's limit of messages in flight.
func TestSlots(t *testing.T) {
	srv, s := newServer(t, 1)
	first := call(s, "a")
	p := <-srv.conns
	a, _ := p.read()
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- s.Send(ctx, Message{}) }()
	cancel()
	require.ErrorIs(t, <-waits, context.Canceled)
	require.Zero(t, p.in.Buffered())
	p.write(frame.Reply, a.ID, "")
	<-first
	require.NoError(t, p.Close())
	s.Close()
}

func TestCancel(t *testing.T) {
	srv, s := newServer(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, Message{})
		got <- err
	}()
	p := <-srv.conns
	a, _ := p.read()
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
	h, _ := p.read()
	require.Equal(t, frame.Head{Kind: frame.Cancel, ID: a.ID}, h)
	require.NoError(t, p.Close())
	s.Close()
}

func TestRefused(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","code":403,"reason":"Forbidden","message":"no"}`)
	}))
	defer srv.Close()
	s := New(srv.Client(), srv.URL)
	_, err := s.Call(t.Context(), Message{})
	require.Equal(t, &Error{403, "Forbidden", "no"}, err)
	_, err = s.Call(t.Context(), Message{Payload: make([]byte, MaxPayload+1)})
	var large *Error
	require.True(t, errors.As(err, &large))
	require.Equal(t, 413, large.Code)
	s.Close()
}

// TestMany checks that frames of many goroutines on one connection are not interleaved.
func TestMany(t *testing.T) {
	srv, s := newServer(t, 64)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 200 {
				text := fmt.Sprint(i, " ", n)
				r, err := s.Call(context.Background(), Message{Payload: []byte(text)})
				if err != nil || string(r.Payload) != text {
					t.Errorf("%q: %q, %v", text, r.Payload, err)
				}
			}
		})
	}
	p := <-srv.conns
	for range 16 * 200 {
		h, text := p.read()
		p.write(frame.Reply, h.ID, text)
	}
	wg.Wait()
	require.NoError(t, p.Close())
	s.Close()
}
