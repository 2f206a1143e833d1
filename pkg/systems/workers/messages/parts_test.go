package messages

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/worker"
)

// listener is a sender that takes a reply in parts, behind a server in the same process.
type listener struct {
	begun chan string // the content type
	in    *io.PipeReader
	ended chan workers.Outcome
}

// listens hands over a message whose sender takes parts.
func (b *bench) listens(id string) *listener {
	in, out := io.Pipe()
	l := &listener{begun: make(chan string, 1), in: in, ended: make(chan workers.Outcome, 1)}
	b.Accept([]*workers.Delivery{{
		ID: id, Payload: []byte("text " + id), Namespace: "ns", Pod: "p", UID: "uid", Attempt: 1,
		Deadline: time.Now().Add(time.Hour),
		Begin: func(contentType string) io.Writer {
			l.begun <- contentType
			return out
		},
		Done: func(o workers.Outcome) {
			_ = out.Close()
			l.ended <- o
		},
	}})
	return l
}

func (b *bench) used() int64 {
	b.bytes.mu.Lock()
	defer b.bytes.mu.Unlock()
	return b.bytes.used
}

// part returns the next n bytes.
func (l *listener) part(t *testing.T, n int) string {
	b := make([]byte, n)
	_, err := io.ReadFull(l.in, b)
	require.NoError(t, err)
	return string(b)
}

// sending is a reply that the test sends in parts over the Runtime API.
type sending struct {
	*io.PipeWriter
	trailer http.Header
	got     chan int // the status code, 0 if the connection broke
}

func (b *bench) sends(ctx context.Context, id string) *sending {
	in, out := io.Pipe()
	s := &sending{out, http.Header{workers.HeaderErrorType: nil, headerErrorBody: nil}, make(chan int, 1)}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.base+runtimePath+"invocation/"+id+"/response", in)
	require.NoError(b.t, err)
	req.Header.Set(headerMode, "streaming")
	req.Header.Set("Content-Type", "text/event-stream")
	req.Trailer = s.trailer
	go func() {
		res, err := program.Do(req)
		if err != nil {
			_ = in.CloseWithError(err)
			s.got <- 0
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		_ = in.Close()
		s.got <- res.StatusCode
	}()
	return s
}

func (s *sending) part(t *testing.T, text string) {
	_, err := io.WriteString(s, text)
	require.NoError(t, err)
}

// TestReplyInParts checks that the sender gets each part before the program sends the next one, and the ways in which a
// reply can end.
func TestReplyInParts(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w", Concurrency: 8}).setup()
	begin := func(id string) (*listener, *sending) {
		l := b.listens(id)
		got, _ := b.next()
		require.Equal(t, id, got)
		s := b.sends(t.Context(), id)
		s.part(t, "one ")
		require.Equal(t, "text/event-stream", <-l.begun)
		require.Equal(t, "one ", l.part(t, 4))
		return l, s
	}
	l, s := begin("1")
	require.Equal(t, http.StatusNotFound, b.reply("1", "another reply"))
	require.Equal(t, http.StatusNotFound, <-b.sends(t.Context(), "1").got)
	s.part(t, "two")
	require.Equal(t, "two", l.part(t, 3))
	require.NoError(t, s.Close())
	require.Equal(t, http.StatusAccepted, <-s.got)
	require.Empty(t, (<-l.ended).Failure)
	_, err := l.in.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)

	l, s = begin("fails")
	s.trailer.Set(workers.HeaderErrorType, "Model.Overloaded")
	s.trailer.Set(headerErrorBody, base64.StdEncoding.EncodeToString([]byte(`{"errorMessage": "try\nlater"}`)))
	require.NoError(t, s.Close())
	require.Equal(t, http.StatusAccepted, <-s.got)
	o := <-l.ended
	require.Equal(t, workers.Outcome{
		Failure: workers.HandlerFailed, ErrorType: "Model.Overloaded", Text: "try later",
	}, o)

	l, s = begin("breaks")
	require.NoError(t, s.CloseWithError(errors.New("the program ends")))
	require.Zero(t, <-s.got)
	require.Equal(t, workers.ReceiverLost, (<-l.ended).Failure)

	l, s = begin("sender goes")
	require.NoError(t, l.in.Close())
	s.part(t, strings.Repeat("x", 2*workers.MaxPayload))
	require.NoError(t, s.Close())
	require.Equal(t, http.StatusAccepted, <-s.got, "the program can finish")
	require.Empty(t, (<-l.ended).Failure)

	l, s = begin("pod goes")
	b.Release("uid")
	require.Equal(t, workers.ReceiverLost, (<-l.ended).Failure)
	_ = s.Close() // net/http's client waits for the body
	require.Zero(t, <-s.got)
	b.Stop() // waits for the requests
	require.Zero(t, b.used(), "all memory was given back")
}

// TestSlowSenderHoldsUpTheProgram checks that no more than a part is in memory while the sender does not read, and that
// the attempt's timeout ends that.
func TestSlowSenderHoldsUpTheProgram(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w", TimeoutSeconds: 1}).setup()
	l := b.listens("1")
	_, _ = b.next()
	s := b.sends(t.Context(), "1")
	go func() { _, _ = io.Copy(s, zeros{}) }()
	<-l.begun
	require.LessOrEqual(t, b.used(), int64(40<<10))
	o := <-l.ended
	require.Equal(t, workers.HandlerTimeout, o.Failure, o.Text)
	<-s.got
	b.Stop()
	require.Zero(t, b.used())
}

// TestWholeReplies checks replies in parts that are not passed on: to a sender that takes only a whole one, to none,
// and a reply in one part.
func TestWholeReplies(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w"}).setup()
	whole := make(chan Outcome, 1)
	go func() {
		m := b.message("1", "x")
		m.Deadline = time.Now().Add(time.Hour)
		whole <- b.Deliver(t.Context(), Target{"ns", "p", "uid"}, m)
	}()
	id, _ := b.next()
	s := b.sends(t.Context(), id)
	s.part(t, "one ")
	s.part(t, "two")
	require.NoError(t, s.Close())
	require.Equal(t, http.StatusAccepted, <-s.got)
	o := <-whole
	require.Equal(t, "one two", string(o.body.data))
	o.release()

	none := b.direct("2")
	id, _ = b.next()
	s = b.sends(t.Context(), id)
	s.part(t, strings.Repeat("x", 2*workers.MaxPayload))
	require.NoError(t, s.Close())
	require.Equal(t, http.StatusAccepted, <-s.got)
	require.Equal(t, "", (<-none).Text)

	r := b.receiver("uid")
	e := &entry{Message: Message{Begin: func(string) io.Writer { panic("it has one part") }}}
	o = r.inParts(e, strings.NewReader(""), "")
	require.Empty(t, o.body.data)
	o.release()
	o = r.inParts(&entry{}, zeros{}, "")
	require.Equal(t, "TooLarge", o.ErrorType)
	require.True(t, r.bytes.take(podBytes))
	require.Equal(t, "NoMemory", r.inParts(&entry{}, zeros{}, "").ErrorType)
	r.bytes.give(podBytes, true)
	b.Stop()
	require.Zero(t, b.used())
}

// TestPushInParts checks a web server that flushes its response.
func TestPushInParts(t *testing.T) {
	next := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "one ")
		w.(http.Flusher).Flush()
		<-next
		if r.Header.Get("Ce-Id") == "fails" {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "two")
	}))
	defer srv.Close()
	port := srv.Listener.Addr().(*net.TCPAddr).Port
	b := newBench(t, workers.Queue{Worker: "w", Mode: workers.ModePush, Port: int32(port)}).setup()
	for _, id := range []string{"1", "fails"} {
		l := b.listens(id)
		require.Equal(t, "text/event-stream", <-l.begun)
		require.Equal(t, "one ", l.part(t, 4))
		next <- struct{}{}
		if id == "fails" {
			o := <-l.ended
			require.Equal(t, workers.ReceiverLost, o.Failure)
			require.Contains(t, o.Text, "broke off")
			continue
		}
		require.Equal(t, "two", l.part(t, 3))
		require.Empty(t, (<-l.ended).Failure)
	}
	b.Stop()
	require.Zero(t, b.used())
}

// TestStreamOfTheLibrary checks a program that uses the Go library, over frames: it takes the next message after a
// reply in parts.
func TestStreamOfTheLibrary(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w"}).setup()
	next := make(chan struct{})
	done := b.serve(t.Context(), 1, func(_ context.Context, m *worker.Message) ([]byte, error) {
		if m.ID == "whole" {
			return []byte("whole"), nil
		}
		out := m.Stream("text/plain")
		_, err := fmt.Fprint(out, "one ")
		if err != nil {
			return nil, err
		}
		<-next
		if m.ID == "fails" {
			return nil, fmt.Errorf("no\n%s", strings.Repeat("x", 100<<10))
		}
		return []byte("two"), nil
	})
	for _, id := range []string{"1", "fails"} {
		l := b.listens(id)
		require.Equal(t, "text/plain", <-l.begun)
		require.Equal(t, "one ", l.part(t, 4))
		next <- struct{}{}
		if id == "fails" {
			o := <-l.ended
			require.Equal(t, workers.HandlerFailed, o.Failure)
			require.Contains(t, o.Text, "no xxx")
			continue
		}
		require.Equal(t, "two", l.part(t, 3))
		require.Empty(t, (<-l.ended).Failure)
	}
	o := b.deliver("whole", "x")
	require.Equal(t, "whole", string(o.body.data))
	o.release()
	b.Close("uid")
	require.NoError(t, <-done)
}

// TestPartsOverHTTP checks a reply in parts on its way to a server on another machine, which asks for parts.
func TestPartsOverHTTP(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w"}).setup()
	mux := http.NewServeMux()
	mux.HandleFunc(b.Routes()[0].Pattern, b.Routes()[0].Handler)
	srv := httptest.NewServer(mux)
	defer srv.Close()
	post := func(ctx context.Context, asks string) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/messages/ns/p/uid", strings.NewReader("x"))
		require.NoError(t, err)
		req.Header.Set(workers.HeaderID, "id")
		req.Header.Set(workers.HeaderTimeout, "1h")
		req.Header.Set(workers.HeaderParts, asks)
		res, err := srv.Client().Do(req)
		require.NoError(t, err)
		return res
	}
	for _, fails := range []bool{false, true} {
		began := make(chan *sending)
		go func() {
			id, _ := b.next()
			s := b.sends(t.Context(), id)
			s.part(t, "one ")
			began <- s
		}()
		res := post(t.Context(), "true")
		s := <-began
		require.Equal(t, "true", res.Header.Get(workers.HeaderParts))
		part := make([]byte, 4)
		_, err := io.ReadFull(res.Body, part)
		require.NoError(t, err)
		require.Equal(t, "one ", string(part))
		if fails {
			s.trailer.Set(workers.HeaderErrorType, "Late")
		}
		s.part(t, "two")
		require.NoError(t, s.Close())
		rest, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "two", string(rest))
		require.NoError(t, res.Body.Close())
		if fails {
			require.Equal(t, "HandlerFailed", res.Trailer.Get(workers.HeaderFailure))
			require.Equal(t, "Late", res.Trailer.Get(workers.HeaderErrorType))
			require.Contains(t, res.Trailer.Get(workers.HeaderErrorText), "failed while it sent")
		} else {
			require.Empty(t, res.Trailer.Get(workers.HeaderFailure))
		}
	}
	go func() {
		id, _ := b.next()
		s := b.sends(t.Context(), id)
		s.part(t, "one ")
		s.part(t, "two")
		_ = s.Close()
	}()
	res := post(t.Context(), "")
	require.EqualValues(t, 7, res.ContentLength, "a former server gets a whole reply")
	require.NoError(t, res.Body.Close())

	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan *sending)
	go func() {
		id, _ := b.next()
		s := b.sends(t.Context(), id)
		s.part(t, "one ")
		began <- s
	}()
	res = post(ctx, "true")
	s := <-began
	cancel() // the server goes
	_ = res.Body.Close()
	for range 64 {
		s.part(t, strings.Repeat("x", 64<<10))
	}
	require.NoError(t, s.Close())
	require.Equal(t, http.StatusAccepted, <-s.got)
}
