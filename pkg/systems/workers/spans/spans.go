// Package spans makes a span for each attempt at a message, and exports it to a collector. Its invariants: a message
// never waits for the collector; spans that do not fit into memory, or that the collector does not take, are dropped
// and counted.
package spans

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// Namespaces share buckets by their hash. The senders of a bucket decide for askedRate messages per second that they
// have spans. maxText bounds the text of a failure, in bytes.
const (
	buckets   = 64
	askedRate = 100
	maxText   = 512
)

// Start starts the span of an attempt, and puts its context into the message. It returns nil, and leaves the message as
// it is, if the attempt has no span. pod and node are "" if no pod took the message.
func (s *Spans) Start(k queue.Key, pod, node string, m *queue.Message) trace.Span {
	if s == nil {
		return nil
	}
	ctx := context.Background()
	if m.Trace != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": m.Trace})
		if !trace.SpanContextFromContext(ctx).IsSampled() || !s.asked[maphash.String(s.seed, k.Namespace)%buckets].Allow() {
			return nil
		}
	} else {
		id, err := uuid.Parse(m.ID)
		if err != nil || float64(binary.BigEndian.Uint32(id[:4])) >= s.ratio*(1<<32) {
			return nil
		}
		ctx = context.WithValue(ctx, traceID{}, trace.TraceID(id)) // all attempts have one trace
	}
	ctx, span := s.tracer.Start(ctx, "process "+k.String(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			semconv.MessagingSystemKey.String("coracle"), semconv.MessagingDestinationName(k.String()),
			semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess,
			semconv.MessagingMessageID(m.ID), semconv.MessagingMessageBodySize(len(m.Payload)),
			semconv.K8SNamespaceName(k.Namespace),
			attribute.Int("coracle.message.attempt", int(m.Attempts)),
			attribute.Float64("coracle.message.wait", time.Since(m.Arrived).Seconds()),
		))
	if pod != "" {
		span.SetAttributes(semconv.K8SPodName(pod), semconv.K8SNodeName(node))
	}
	to := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, to)
	m.Trace = to["traceparent"]
	return span
}

// End ends the span of an attempt; text describes its failure. An attempt that no program has seen gets no span.
func (s *Spans) End(span trace.Span, o *workers.Outcome, text string) {
	if span == nil || o.Untouched && o.Failure != "" {
		return
	}
	if s.pending.Add(1) > mostSpans {
		s.pending.Add(-1)
		s.drop(1, fmt.Errorf("%d spans wait for the collector", mostSpans))
		return
	}
	if o.Failure != "" {
		span.SetAttributes(semconv.ErrorTypeKey.String(string(o.Failure)))
		span.SetStatus(codes.Error, bounded.Text(text, maxText))
	}
	span.End()
}

type traceID struct{}

// ids implements sdk.IDGenerator: a span without a parent has the trace ID of its context.
type ids struct{}

func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id, _ := ctx.Value(traceID{}).(trace.TraceID)
	return id, ids{}.NewSpanID(ctx, id)
}

func (ids) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	binary.NativeEndian.PutUint64(id[:], max(1, rand.Uint64())) //nolint:gosec // not a secret
	return id
}
