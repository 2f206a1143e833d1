package workers

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	streams "github.com/coracle-dev/coracle/pkg/systems/workers/sender"
)

// TestReplyInParts checks that senders over HTTP get parts as they come, and notice a reply that breaks off.
func TestReplyInParts(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtLeastOnce))
	srv, serving := on.serve(nil, t, ann)
	failed := workers.Outcome{Failure: workers.HandlerFailed, ErrorType: "T", Text: "too\nlate"}
	type answer struct {
		res *http.Response
		to  io.Writer
		d   *workers.Delivery
	}
	post := func(ctx context.Context, header, value string) answer {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"?wait", strings.NewReader("x"))
		require.NoError(t, err)
		req.Header.Set(header, value)
		begun := make(chan answer, 1)
		go func() {
			d := <-on.came
			to := d.Begin("text/event-stream")
			_, _ = io.WriteString(to, "one ")
			begun <- answer{d: d, to: to}
		}()
		res, err := srv.Client().Do(req)
		require.NoError(t, err)
		a := <-begun
		a.res = res
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
		require.Equal(t, "p", res.Header.Get(workers.HeaderPod))
		part := make([]byte, 4)
		_, err = io.ReadFull(res.Body, part)
		require.NoError(t, err)
		require.Equal(t, "one ", string(part))
		return a
	}
	a := post(t.Context(), "X", "")
	go func() {
		_, _ = io.WriteString(a.to, "two")
		a.d.Done(workers.Outcome{})
	}()
	rest, err := io.ReadAll(a.res.Body)
	require.NoError(t, err)
	require.Equal(t, "two", string(rest))
	require.NoError(t, a.res.Body.Close())

	a = post(t.Context(), "X", "")
	a.d.Done(failed)
	_, err = io.ReadAll(a.res.Body)
	require.Error(t, err, "a sender that reads no trailers does not take the part for the whole")
	require.NoError(t, a.res.Body.Close())

	a = post(t.Context(), "TE", "trailers")
	a.d.Done(failed)
	_, err = io.ReadAll(a.res.Body)
	require.NoError(t, err)
	require.Equal(t, "HandlerFailed", a.res.Trailer.Get(workers.HeaderFailure))
	require.Equal(t, "T", a.res.Trailer.Get(workers.HeaderErrorType))
	require.Equal(t, "pod p: too late", a.res.Trailer.Get(workers.HeaderErrorText))
	require.NoError(t, a.res.Body.Close())

	ctx, cancel := context.WithCancel(t.Context())
	a = post(ctx, "X", "")
	cancel()
	for err = error(nil); err == nil; { // until the server notices
		_, err = io.WriteString(a.to, "more")
	}
	a.d.Done(workers.Outcome{})

	got := make(chan string, 1)
	go func() {
		d := <-on.came
		got <- d.ContentType
		require.Nil(t, d.Begin)
		d.Done(workers.Outcome{Payload: []byte("whole")})
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"?wait", strings.NewReader("x"))
	require.NoError(t, err)
	req.Header.Set(workers.HeaderParts, "false")
	res, err := srv.Client().Do(req)
	require.NoError(t, err)
	<-got
	require.EqualValues(t, 5, res.ContentLength)
	require.NoError(t, res.Body.Close())
	srv.CloseClientConnections()
	serving.Wait()
}

// TestSenderStream checks the Go sender's reader.
func TestSenderStream(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtMostOnce))
	srv, _ := on.serve(nil, t, ann)
	s := streams.New(srv.Client(), srv.URL)
	defer s.Close()
	for _, end := range []workers.Outcome{{}, {Failure: workers.HandlerTimeout, Text: "late"}} {
		begun := make(chan *workers.Delivery, 1)
		var to io.Writer
		go func() {
			d := <-on.came
			to = d.Begin("text/plain")
			_, _ = io.WriteString(to, "one ")
			begun <- d
		}()
		r, err := s.Stream(t.Context(), streams.Message{Payload: []byte("x"), ContentType: "text/plain"})
		require.NoError(t, err)
		require.Equal(t, []any{"text/plain", 1}, []any{r.ContentType, r.Attempt})
		part := make([]byte, 4)
		_, err = io.ReadFull(r, part)
		require.NoError(t, err)
		d := <-begun
		require.Equal(t, "text/plain", d.ContentType)
		go func() {
			_, _ = io.WriteString(to, "two")
			d.Done(end)
		}()
		rest, err := io.ReadAll(r)
		require.Equal(t, "two", string(rest))
		require.NoError(t, r.Close())
		if end.Failure == "" {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, &streams.Error{Code: 504, Reason: "HandlerTimeout", Message: "pod p: late"}, err)
	}
	go func() { (<-on.came).Done(workers.Outcome{Failure: workers.HandlerFailed, Text: "no"}) }()
	_, err := s.Stream(t.Context(), streams.Message{})
	var failed *streams.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 500, failed.Code)
}
