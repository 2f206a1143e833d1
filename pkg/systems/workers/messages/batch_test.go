package messages

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
	"github.com/coracle-dev/coracle/pkg/systems/workers/worker"
)

// TestBatchesOverHTTP checks that a batch from a server on another machine, which is larger than a message, reaches a
// program with frames, one that polls and one that is posted to, and that its answer is read as a whole.
func TestBatchesOverHTTP(t *testing.T) {
	large := strings.Repeat("x", workers.MaxCall+1)
	headers := make(chan http.Header, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		headers <- r.Header
		for _, part := range []string{"got ", string(body[len(body)-1:])} { // without Content-Length
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
	}))
	defer srv.Close()
	port := int32(srv.Listener.Addr().(*net.TCPAddr).Port)
	post := func(b *bench, text string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/messages/ns/p/uid", strings.NewReader(text))
		r.SetPathValue("namespace", "ns")
		r.SetPathValue("pod", "p")
		r.SetPathValue("uid", "uid")
		r.Header.Set(workers.HeaderID, "batch")
		r.Header.Set(workers.HeaderTimeout, "1h")
		r.Header.Set("Content-Type", event.BatchType)
		w := httptest.NewRecorder()
		b.Manager.serve(w, r)
		return w.Code, w.Body.String()
	}
	batch := &workers.WorkerBatch{Size: 10}

	b := newBench(t, workers.Queue{Worker: "w", Batch: batch}).setup()
	ctx, stop := context.WithCancel(t.Context())
	done := b.serve(ctx, 1, func(_ context.Context, m *worker.Message) ([]byte, error) {
		return []byte("got " + string(m.Payload[len(m.Payload)-1:])), nil
	})
	code, answer := post(b, large)
	require.Equal(t, http.StatusOK, code, answer)
	require.Equal(t, "got x", answer)
	stop()
	require.NoError(t, <-done)
	replied := make(chan int, 1)
	go func() {
		id, text := b.next()
		replied <- b.reply(id, "got "+text[len(text)-1:])
	}()
	_, answer = post(b, large)
	require.Equal(t, "got x", answer)
	require.Equal(t, http.StatusAccepted, <-replied)
	code, _ = post(b, strings.Repeat("x", workers.MaxDelivery+1))
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	b.Stop()
	require.Zero(t, b.used())

	b = newBench(t, workers.Queue{Worker: "w", Mode: workers.ModePush, Port: port, Batch: batch}).setup()
	_, answer = post(b, large)
	require.Equal(t, "got x", answer)
	h := <-headers
	require.Equal(t, event.BatchType, h.Get("Content-Type"))
	for name := range h {
		require.False(t, strings.HasPrefix(name, "Ce-"), name)
	}
	b.Stop()

	b = newBench(t, workers.Queue{Worker: "w"}).setup()
	code, _ = post(b, large)
	require.Equal(t, http.StatusRequestEntityTooLarge, code, "a program without batches")
}
