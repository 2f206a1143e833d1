package spans

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	parentID  = "00f067aa0ba902b7"
	traceText = "4bf92f3577b34da6a3ce929d0e0e4736"
	sampled   = "00-" + traceText + "-" + parentID + "-01"
)

var key = queue.Key{Namespace: "ns", Worker: "w"}

func message(traceparent string) *queue.Message {
	return &queue.Message{
		ID: uuid.NewString(), Trace: traceparent, Attempts: 2, Payload: []byte("four"),
		Arrived: time.Now().Add(-3 * time.Second),
	}
}

// receiver is an OTLP collector.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (
	*collector.ExportTraceServiceResponse, error,
) {
	r.got <- req
	return &collector.ExportTraceServiceResponse{}, nil
}

func file(t *testing.T, fields string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tracing.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n" + fields
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestCollectorGetsSpans checks what a collector gets with the settings of a file, a hostile error text included, and
// what the program gets.
func TestCollectorGetsSpans(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &receiver{got: make(chan *collector.ExportTraceServiceRequest, 10)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	out, ratio, err := Load(file(t, "endpoint: "+l.Addr().String()+"\nsamplingRatePerMillion: 1000000\n"))
	require.NoError(t, err)
	s := New(out, ratio, "one", prometheus.NewRegistry(), slog.New(slog.DiscardHandler))

	asked, own := message(sampled), message("")
	first := s.Start(key, "w-1", "node", asked)
	s.End(first, &workers.Outcome{Failure: workers.HandlerFailed}, strings.Repeat("not UTF-8: \xff", 500))
	second := s.Start(key, "w-1", "node", own)
	s.End(second, &workers.Outcome{}, "")
	not := message("00-" + traceText + "-" + parentID + "-00")
	require.Nil(t, s.Start(key, "w-1", "node", not))
	require.Equal(t, "00-"+traceText+"-"+parentID+"-00", not.Trace)
	s.Close()
	server.Stop()
	require.NoError(t, <-served)

	close(r.got)
	var got []*tracepb.Span
	for req := range r.got {
		for _, rs := range req.ResourceSpans {
			require.Equal(t, "coracle", attributes(rs.Resource.Attributes)["service.name"])
			for _, ss := range rs.ScopeSpans {
				got = append(got, ss.Spans...)
			}
		}
	}
	require.Len(t, got, 2)
	a, b := got[0], got[1]
	require.Equal(t, traceText, hex.EncodeToString(a.TraceId))
	require.Equal(t, parentID, hex.EncodeToString(a.ParentSpanId))
	require.Equal(t, "00-"+traceText+"-"+hex.EncodeToString(a.SpanId)+"-01", asked.Trace)
	require.Equal(t, "process ns/w", a.Name)
	require.Equal(t, tracepb.Span_SPAN_KIND_CONSUMER, a.Kind)
	require.Equal(t, tracepb.Status_STATUS_CODE_ERROR, a.Status.Code)
	require.LessOrEqual(t, len(a.Status.Message), maxText)
	with := attributes(a.Attributes)
	require.GreaterOrEqual(t, with["coracle.message.wait"], 3.0)
	delete(with, "coracle.message.wait")
	require.Equal(t, map[string]any{
		"messaging.system": "coracle", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "ns/w", "messaging.message.id": asked.ID, "messaging.message.body.size": int64(4),
		"k8s.namespace.name": "ns", "k8s.pod.name": "w-1", "k8s.node.name": "node", "coracle.message.attempt": int64(2),
		"error.type": "HandlerFailed",
	}, with)
	require.Equal(t, strings.ReplaceAll(own.ID, "-", ""), hex.EncodeToString(b.TraceId))
	require.Empty(t, b.ParentSpanId)
	require.Equal(t, "00-"+hex.EncodeToString(b.TraceId)+"-"+hex.EncodeToString(b.SpanId)+"-01", own.Trace)
}

func attributes(list []*commonpb.KeyValue) map[string]any {
	all := map[string]any{}
	for _, kv := range list {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			all[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			all[kv.Key] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			all[kv.Key] = v.DoubleValue
		}
	}
	return all
}

func newSpans(out sdk.SpanExporter, ratio float64, log *bytes.Buffer) *Spans {
	return New(out, ratio, "one", prometheus.NewRegistry(), slog.New(slog.NewTextHandler(log, nil)))
}

// TestShares checks that the ratio decides for messages without a traceparent, and that all attempts at a message have
// the same decision and trace.
func TestShares(t *testing.T) {
	out := tracetest.NewNoopExporter()
	s := newSpans(out, 0.25, &bytes.Buffer{})
	defer s.Close()
	n := 0
	for range 4000 {
		m := message("")
		again := *m
		if s.Start(key, "p", "n", m) != nil {
			n++
		}
		s.Start(key, "p", "n", &again)
		require.Equal(t, strings.Split(m.Trace+"--", "-")[1], strings.Split(again.Trace+"--", "-")[1])
	}
	require.InDelta(t, 1000, n, 250) // nine standard deviations
	none := newSpans(out, 0, &bytes.Buffer{})
	defer none.Close()
	require.Nil(t, none.Start(key, "p", "n", &queue.Message{ID: "00000000-0000-4000-8000-000000000000"}))
}

// TestSendersAreBounded checks that the sampled flag of one namespace's senders causes a bounded rate of spans, and
// takes nothing from other namespaces.
func TestSendersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpans(tracetest.NewNoopExporter(), 1, &bytes.Buffer{})
		defer s.Close()
		count := func(k queue.Key) (n int) {
			for range 1000 {
				m := message(sampled)
				if span := s.Start(k, "p", "n", m); span != nil {
					n++
					s.End(span, &workers.Outcome{}, "")
				} else {
					require.Equal(t, sampled, m.Trace)
				}
			}
			return n
		}
		require.Equal(t, askedRate, count(key))
		other := key
		for i := 0; s.bucket(other.Namespace) == s.bucket(key.Namespace); i++ {
			other.Namespace = fmt.Sprint("other-", i)
		}
		require.Equal(t, askedRate, count(other))
		time.Sleep(time.Second)
		require.Equal(t, askedRate, count(key))
	})
}

func (s *Spans) bucket(namespace string) uint64 { return maphash.String(s.seed, namespace) % buckets }

// stuck is a collector that does not answer.
type stuck struct{ tracetest.NoopExporter }

func (*stuck) ExportSpans(ctx context.Context, _ []sdk.ReadOnlySpan) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestDeadCollector checks that a collector that does not answer holds up neither messages nor the stop, and that
// memory, time and log lines are bounded.
func TestDeadCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newSpans(&stuck{}, 1, &log)
		began := time.Now()
		for range 3 * mostSpans {
			s.End(s.Start(key, "p", "n", message("")), &workers.Outcome{}, "")
		}
		require.Equal(t, began, time.Now())
		require.EqualValues(t, mostSpans, s.pending.Load())
		require.InDelta(t, 2*mostSpans, testutil.ToFloat64(s.dropped), 0)
		stop := time.Now()
		s.Close()
		require.Less(t, time.Since(stop), time.Second)
		require.InDelta(t, 3*mostSpans, testutil.ToFloat64(s.dropped), 0)
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	})
}

// TestFiles checks which files are refused.
func TestFiles(t *testing.T) {
	out, ratio, err := Load(file(t, ""))
	require.NoError(t, err)
	require.Zero(t, ratio)
	require.NoError(t, out.Shutdown(t.Context()))
	for fields, want := range map[string]string{
		"samplingRatePerMillion: 1000001": "less than or equal to one million",
		"endpoint: http://a:1":            "unsupported scheme",
		"endPoint: a:1":                   "unknown field",
		"endpoint: 1":                     "cannot unmarshal number",
	} {
		_, _, err := Load(file(t, fields))
		require.ErrorContains(t, err, want)
	}
	_, _, err = Load(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestOffCostsNothing checks that messages allocate nothing for spans that are off.
func TestOffCostsNothing(t *testing.T) {
	m := message(sampled)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		var s *Spans
		s.End(s.Start(key, "p", "n", m), &workers.Outcome{}, "")
	}))
	require.Equal(t, sampled, m.Trace)
}

func BenchmarkSpan(b *testing.B) {
	s := newSpans(tracetest.NewNoopExporter(), 1, &bytes.Buffer{})
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		s.End(s.Start(key, "p", "n", message("")), &workers.Outcome{}, "")
	}
}
