package messages

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/worker"
)

func (b *bench) batch(wait bool, body string) (int, []workers.BatchOutcome, http.Header) {
	w := httptest.NewRecorder()
	b.ReceiveBatch(b.t.Context(), w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)),
		Target{"ns", "p", "uid"}, Message{}, wait)
	var out []workers.BatchOutcome
	_ = json.Unmarshal(w.Body.Bytes(), &out)
	return w.Code, out, w.Header()
}

func batchOf(payloads ...string) string {
	var list []workers.BatchMessage
	for i, p := range payloads {
		list = append(list, workers.BatchMessage{ID: fmt.Sprint(p, i), Payload: []byte(p)})
	}
	text, _ := json.Marshal(list)
	return string(text)
}

func TestBatch(t *testing.T) {
	dir := t.TempDir()
	b := newBench(t, dir, workers.Queue{Worker: "w", Concurrency: 2, Limit: 3, Promise: workers.AtLeastOnce}).setup()
	code, out, _ := b.batch(false, batchOf("a", "b", "c", "d"))
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, []workers.Failure{"", "", "", workers.QueueFull},
		[]workers.Failure{out[0].Failure, out[1].Failure, out[2].Failure, out[3].Failure})
	require.True(t, out[3].Untouched)
	b.Stop()
	b = newBench(t, dir, workers.Queue{Worker: "w", Concurrency: 2, Limit: 100, Promise: workers.AtLeastOnce}).setup()
	depth, _, _, _, _, _ := b.receiver("uid").queue.report()
	require.Equal(t, 3, depth, "what was accepted is on disk")

	b.serve(t.Context(), 2, func(_ context.Context, m *worker.Message) ([]byte, error) {
		if string(m.Payload) == "large" {
			return make([]byte, 700<<10), nil
		}
		return m.Payload, nil
	})
	code, out, _ = b.batch(true, batchOf("x", "large"))
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "x", string(out[0].Payload))
	require.Len(t, out[1].Payload, 700<<10)
	_, out, _ = b.batch(true, batchOf("large", "large", "y"))
	require.Equal(t, []string{"", "TooLarge", ""}, []string{out[0].ErrorType, out[1].ErrorType, out[2].ErrorType},
		"the replies together are limited")
	require.Equal(t, "y", string(out[2].Payload))
	b.receiver("uid").queue.report()
	require.Zero(t, b.bytes.used, "all memory was given back")
}

func TestBadBatch(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"}).setup()
	for _, body := range []string{
		"", "{", `[{"payload": "eA=="}]`, batchOf(make([]string, workers.MaxBatch+1)...),
		strings.Repeat(" ", mostBatchBytes+1),
	} {
		code, _, _ := b.batch(false, body)
		require.Equal(t, http.StatusBadRequest, code, "%.40q", body)
	}
	require.Zero(t, b.bytes.used)
	require.True(t, b.bytes.take(nodeBytes))
	code, _, head := b.batch(false, batchOf("x"))
	require.Equal(t, http.StatusTooManyRequests, code)
	require.Equal(t, string(workers.QueueFull), head.Get(workers.HeaderFailure))
	b.bytes.give(nodeBytes, false)
}
