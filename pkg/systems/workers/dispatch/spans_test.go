package dispatch

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	"github.com/coracle-dev/coracle/pkg/systems/workers/spans"
)

// kept keeps the spans after the shutdown.
type kept struct{ *tracetest.InMemoryExporter }

func (kept) Shutdown(context.Context) error { return nil }

// TestSpansOfABatch checks that the program gets the context of each message's own span.
func TestSpansOfABatch(t *testing.T) {
	run(t, func(c *cluster) {
		out := kept{tracetest.NewInMemoryExporter()}
		c.c.Spans = spans.New(out, 1, "server", prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		c.batches("a", workers.WorkerBatch{Size: 3}, atLeastOnce)
		c.send(uuid.NewString(), uuid.NewString())
		list, _ := c.calls()
		require.Len(t, list, 1)
		var batch struct{ Records []record }
		require.NoError(t, json.Unmarshal(list[0].Payload, &batch))
		list[0].Done(handled)
		synctest.Wait()
		c.c.Spans.Close()
		var want, got []string
		for _, s := range out.GetSpans() {
			want = append(want, "00-"+s.SpanContext.TraceID().String()+"-"+s.SpanContext.SpanID().String()+"-01")
		}
		for _, r := range batch.Records {
			got = append(got, r.Attributes["traceparent"]["stringValue"])
		}
		require.Len(t, got, 2)
		require.ElementsMatch(t, want, got)
	})
}

// TestSpans checks that each attempt that a program or the queue ended has a span, whose context the program gets, and
// that the reply belongs to it.
func TestSpans(t *testing.T) {
	run(t, func(c *cluster) {
		out := kept{tracetest.NewInMemoryExporter()}
		c.c.Spans = spans.New(out, 0, "server", prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		w := c.replying(workers.AtLeastOnce, "listener")
		c.worker("listener", atLeastOnce)
		c.ready("a")
		const from = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		send := func(m queue.Message) {
			m.Trace = from
			require.NoError(t, c.Send(key, workers.QueueOf(w), []Message{{Message: m}})()[0])
		}
		send(queue.Message{ID: "1"})
		var got []string
		for i, o := range []workers.Outcome{
			bad, {Failure: workers.NoReceiver, Text: "its node is gone", Untouched: true}, answer("one"),
		} {
			d, _ := c.take()
			require.Len(t, d, 1, i)
			got = append(got, d[0].Trace)
			d[0].Done(o)
			synctest.Wait()
			time.Sleep(restTime)
		}
		m, ok := c.queues.Claim(listener, "l")
		require.True(t, ok)
		require.Equal(t, got[2], m.Trace)
		c.queues.Acknowledge(listener, m.ID)

		send(queue.Message{ID: "2"})
		busy, _ := c.take()
		send(queue.Message{ID: "3", Expires: time.Now().Add(time.Second)})
		time.Sleep(2 * time.Second)
		busy[0].Done(handled)
		synctest.Wait()
		c.c.Spans.Close()

		all := map[string]string{}
		for _, s := range out.GetSpans() {
			set := attribute.NewSet(s.Attributes...)
			id, _ := set.Value("messaging.message.id")
			failure, _ := set.Value("error.type")
			require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", s.SpanContext.TraceID().String())
			require.Equal(t, "00f067aa0ba902b7", s.Parent.SpanID().String())
			all["00-"+s.SpanContext.TraceID().String()+"-"+s.SpanContext.SpanID().String()+"-01"] = id.AsString() + " " +
				failure.AsString()
		}
		require.Len(t, all, 4)
		require.Equal(t, "1 HandlerFailed", all[got[0]])
		require.NotContains(t, all, got[1], "no program has seen this attempt")
		require.Equal(t, "1 ", all[got[2]])
		require.Equal(t, "2 ", all[busy[0].Trace])
		require.Contains(t, slices.Collect(maps.Values(all)), "3 HandlerTimeout", "no program took this message")
	})
}
