package messages

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
	"github.com/coracle-dev/coracle/pkg/systems/workers/worker"
)

// serve runs a program that uses pkg/systems/workers/worker in the pod.
func (b *bench) serve(ctx context.Context, concurrency int, h worker.Handler) <-chan error {
	address := strings.TrimPrefix(b.base, "http://")
	for name, value := range map[string]string{
		workers.RuntimeEnv:     address,
		workers.MessagesEnv:    address,
		workers.ConcurrencyEnv: fmt.Sprint(concurrency),
	} {
		b.t.Setenv(name, value)
	}
	done := make(chan error, 1)
	go func() { done <- worker.Serve(ctx, h) }()
	return done
}

func TestFramesToAProgram(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w", Concurrency: 8}).setup()
	var mu sync.Mutex
	now, most := 0, 0
	done := b.serve(t.Context(), 8, func(_ context.Context, m *worker.Message) ([]byte, error) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			now--
		}()
		switch string(m.Payload) {
		case "bad":
			return nil, errors.New("it is\nbad")
		case "large":
			return make([]byte, worker.MaxPayload), nil
		case "panic":
			panic("oh")
		}
		return []byte(strings.ToUpper(string(m.Payload))), nil
	})
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8) // the server sends no more than the program handles
	for i := range 200 {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			o := b.deliver(fmt.Sprint(i), fmt.Sprint("message ", i))
			if o.Failure != "" || string(o.body.data) != fmt.Sprint("MESSAGE ", i) ||
				o.ContentType != "application/octet-stream" {
				t.Error(o)
				return
			}
			o.body.release()
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most, 8, "the pod's concurrency")
	o := b.deliver("bad", "bad")
	require.Equal(t, Outcome{Failure: workers.HandlerFailed, Text: "it is bad"}, o, "errors.errorString says nothing")
	require.Contains(t, b.deliver("panic", "panic").Text, "oh")
	o = b.deliver("large", "large")
	require.Len(t, o.body.data, worker.MaxPayload)
	o.body.release()
	require.Zero(t, b.bytes.used, "all memory was given back")
	b.Close("uid")
	require.NoError(t, <-done, "the program ends with the pod")
}

// TestFramesEndWithTheProgram checks that a stopping program answers its messages and gets no more.
func TestFramesEndWithTheProgram(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w", Concurrency: 2}).setup()
	ctx, stop := context.WithCancel(t.Context())
	began, end := make(chan string, 10), make(chan struct{})
	done := b.serve(ctx, 2, func(_ context.Context, m *worker.Message) ([]byte, error) {
		began <- m.ID
		<-end
		return nil, nil
	})
	got := make(chan Outcome, 2)
	for i := range 2 {
		go func() { got <- b.deliver(fmt.Sprint(i), "x") }()
		<-began
	}
	stop()
	more := b.direct("2", "3")
	close(end)
	require.Empty(t, (<-got).Failure)
	require.Empty(t, (<-got).Failure)
	require.NoError(t, <-done)
	require.Empty(t, began)
	b.Close("uid")
	require.True(t, (<-more).Untouched)
	require.True(t, (<-more).Untouched)
}

func (b *bench) frames(slots int) (net.Conn, *bufio.Reader) {
	c, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = c.Close() })
	_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n\r\n",
		frame.Path, frame.Protocol, frame.HeaderSlots, slots)
	require.NoError(b.t, err)
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	require.NoError(b.t, err)
	require.Equal(b.t, http.StatusSwitchingProtocols, res.StatusCode)
	return c, r
}

// TestFramesOfAProgramThatBreaks checks that a message which a broken connection may have delivered is not sent
// again, that the next connection may answer it, and that malformed frames end the connection.
func TestFramesOfAProgramThatBreaks(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w", Concurrency: 3}).setup()
	c, r := b.frames(1)
	got := make(chan Outcome, 2)
	go func() { got <- b.deliver("1", "x") }()
	h, size, err := frame.Read(r)
	require.NoError(t, err)
	require.Equal(t, "1", h.ID)
	_, err = r.Discard(size)
	require.NoError(t, err)
	require.NoError(t, c.Close())

	c, r = b.frames(2)
	out := bufio.NewWriter(c)
	go func() { got <- b.deliver("2", "y") }()
	h, _, err = frame.Read(r)
	require.NoError(t, err)
	require.Equal(t, "2", h.ID, "the first message does not come again")
	require.NoError(t, frame.Write(out, &frame.Head{Kind: frame.Reply, ID: "1"}, []byte("late")))
	require.NoError(t, frame.Write(out, &frame.Head{Kind: frame.Reply, ID: "1"}, []byte("again")))
	require.NoError(t, out.Flush())
	o := <-got
	require.Equal(t, "late", string(o.body.data))
	o.body.release()
	_, err = r.Discard(1)
	require.NoError(t, err)
	h, size, err = frame.Read(r)
	require.NoError(t, err)
	require.Equal(t, frame.Refused, h.Kind)
	text := make([]byte, size)
	_, err = io.ReadFull(r, text)
	require.NoError(t, err)
	require.Contains(t, string(text), "answered before")

	_, err = c.Write([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, r) // ends
	b.Observe("uid", "c1", false)
	require.Equal(t, workers.ReceiverLost, (<-got).Failure)

	res, err := program.Get(b.base + frame.Path)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusUpgradeRequired, res.StatusCode)
}
