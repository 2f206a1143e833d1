package dispatch

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// listen sends a message whose sender takes parts.
func (c *cluster) listen(id string, wait time.Duration) chan Outcome {
	got := make(chan Outcome, 2)
	w := c.workers[types.NamespacedName{Namespace: "ns", Name: "w"}]
	require.NoError(c.t, c.Send(key, workers.QueueOf(w), []Message{{
		Message: queue.Message{ID: id}, Deadline: time.Now().Add(wait), Done: func(o Outcome) { got <- o }, Parts: true,
	}})()[0])
	return got
}

// TestReplyInParts checks that a message whose reply has begun has no further attempt and keeps its pod until the reply
// ends, and each way in which that can be.
func TestReplyInParts(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", atLeastOnce)
		c.ready("a")
		begin := func(id string) (Outcome, *workers.Delivery, io.Writer) {
			got := c.listen(id, time.Minute)
			d := c.takes(id + "@a#1")[0]
			to := d.Begin("text/plain")
			o := <-got
			require.Equal(t, []any{"text/plain", "a", int32(1)}, []any{o.ContentType, o.Pod, o.Attempts})
			return o, d, to
		}
		o, d, to := begin("1")
		wrote := make(chan error, 1)
		go func() {
			_, err := io.WriteString(to, "part")
			wrote <- err
		}()
		synctest.Wait()
		require.Empty(t, wrote, "a sender that does not read holds up the program")
		part := make([]byte, 10)
		n, err := o.Parts.Read(part)
		require.NoError(t, err)
		require.Equal(t, "part", string(part[:n]))
		require.NoError(t, <-wrote)
		c.send("next")
		c.takes()
		d.Done(handled)
		_, err = o.Parts.Read(part)
		require.ErrorIs(t, err, io.EOF)
		c.takes("next@a#1")[0].Done(handled)

		// The program fails.
		o, d, _ = begin("2")
		d.Done(bad)
		var broken *BrokenError
		_, err = o.Parts.Read(part)
		require.ErrorAs(t, err, &broken)
		require.Equal(t, "a", broken.Outcome.Pod)
		require.ErrorContains(t, err, "HandlerFailed: bad")
		c.takes()

		// The sender goes: the program is not disturbed, and its slot is free when it ends.
		o, d, to = begin("3")
		require.NoError(t, o.Parts.Close())
		c.Cancel(key, "3")
		_, err = io.WriteString(to, "part")
		require.Error(t, err)
		c.send("after")
		c.takes()
		d.Done(handled)
		c.takes("after@a#1")[0].Done(handled)

		// The sender's deadline passes.
		o, d, to = begin("4")
		go func() {
			_, err := io.WriteString(to, "part")
			wrote <- err
		}()
		time.Sleep(61 * time.Second)
		require.ErrorIs(t, <-wrote, io.ErrClosedPipe)
		_, err = o.Parts.Read(part)
		require.ErrorContains(t, err, "the sender's deadline has passed")
		d.Done(bad)

		// An attempt that is over does not begin a reply.
		got := c.listen("5", time.Minute)
		d = c.takes("5@a#1")[0]
		d.Done(bad)
		_, err = io.WriteString(d.Begin(""), "late")
		require.Error(t, err)
		time.Sleep(time.Second)
		c.takes("5@a#2")[0].Done(handled)
		require.Empty(t, (<-got).Failure)

		// The server stops.
		o, _, _ = begin("6")
		c.Stop()
		_, err = o.Parts.Read(part)
		require.ErrorContains(t, err, "the server stops")
	})
}

// response is a transport to a node whose agent sends a reply in parts.
type response struct {
	body io.Reader
	http.Header
	trailer http.Header
	asked   http.Header
}

func (r *response) RoundTrip(req *http.Request) (*http.Response, error) {
	r.asked = req.Header
	return &http.Response{
		StatusCode: http.StatusOK, Header: r.Header, Body: io.NopCloser(r.body), Trailer: r.trailer, Request: req,
	}, nil
}

// TestPartsFromANode checks a reply in parts from another machine, and the agents of former versions.
func TestPartsFromANode(t *testing.T) {
	in, out := io.Pipe()
	read := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(in)
		read <- string(text)
	}()
	d := &workers.Delivery{Begin: func(contentType string) io.Writer {
		require.Equal(t, "text/plain", contentType)
		return out
	}}
	post := func(r *response) workers.Outcome {
		r.Header.Set("Content-Type", "text/plain")
		c := &Dispatcher{c: Config{Connect: func(context.Context, string) (*url.URL, http.RoundTripper, error) {
			return &url.URL{Scheme: "http", Host: "n"}, r, nil
		}}}
		return c.post(t.Context(), "n", d)
	}
	r := &response{body: strings.NewReader("all"), Header: http.Header{}}
	o := post(r)
	require.Equal(t, "all", string(o.Payload))
	require.Equal(t, "true", r.asked.Get(workers.HeaderParts))

	r = &response{body: strings.NewReader("parts"), Header: http.Header{}, trailer: http.Header{}}
	r.Header.Set(workers.HeaderParts, "true")
	r.trailer.Set(workers.HeaderFailure, "HandlerFailed")
	r.trailer.Set(workers.HeaderErrorType, "T")
	r.trailer.Set(workers.HeaderErrorText, "late")
	o = post(r)
	require.Equal(t, workers.Outcome{Failure: workers.HandlerFailed, ErrorType: "T", Text: "late"}, o)

	r.body, r.trailer = io.MultiReader(strings.NewReader(", more"), &broken{}), nil
	o = post(r)
	require.Equal(t, workers.ReceiverLost, o.Failure)
	require.NoError(t, out.Close())
	require.Equal(t, "parts, more", <-read)
}

type broken struct{}

func (*broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
