package spans

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	tracing "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/version"
)

const (
	// mostSpans bounds the ended spans in memory, of some 2 KB each.
	mostSpans = 2048
	// exportTime bounds one export with its retries. After Close all exports together have stopTime.
	exportTime = 10 * time.Second
	stopTime   = 800 * time.Millisecond
)

// Load returns the exporter and the ratio for New from a TracingConfiguration file of kube-apiserver.
func Load(path string) (out sdk.SpanExporter, ratio float64, err error) {
	data, err := bounded.Configured(path, 64<<10)
	if err != nil {
		return nil, 0, err
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	var t apiserver.TracingConfiguration
	if err = runtime.DecodeInto(decoder, data, &t); err == nil {
		err = tracing.ValidateTracingConfiguration(&t.TracingConfiguration, nil, nil).ToAggregate()
	}
	if err != nil {
		return nil, 0, err
	}
	out, err = otlptracegrpc.New(context.Background(), otlptracegrpc.WithInsecure(), otlptracegrpc.WithTimeout(exportTime),
		otlptracegrpc.WithEndpoint(ptr.Deref(t.Endpoint, "localhost:4317")),
		// Or each connection would wait for a TXT record in DNS, with localhost too.
		otlptracegrpc.WithDialOption(grpc.WithDisableServiceConfig()))
	return out, float64(ptr.Deref(t.SamplingRatePerMillion, 0)) / 1e6, err
}

// Spans makes and exports spans. A nil *Spans makes none. It is safe for concurrent use.
type Spans struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	out      sdk.SpanExporter
	ratio    float64
	seed     maphash.Seed
	asked    [buckets]*rate.Limiter
	stopped  context.Context // done when exports must end
	stop     context.CancelFunc
	pending  atomic.Int64 // ended spans in memory
	dropped  prometheus.Counter
	log      *slog.Logger
	logged   rate.Sometimes
}

// New returns Spans that Close must end, with out. ratio is the share of messages without a traceparent that have
// spans, 0 to 1, and server the name of this server.
func New(out sdk.SpanExporter, ratio float64, server string, metrics prometheus.Registerer, log *slog.Logger) *Spans {
	s := &Spans{
		out: out, ratio: ratio, seed: maphash.MakeSeed(), log: log, logged: rate.Sometimes{Interval: time.Minute},
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "coracle_messages_spans_dropped_total",
			Help: "Spans of messages that were dropped: the collector did not take them, or too many waited for it.",
		}),
	}
	for i := range s.asked {
		s.asked[i] = rate.NewLimiter(askedRate, askedRate)
	}
	metrics.MustRegister(s.dropped)
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.provider = sdk.NewTracerProvider(sdk.WithSampler(sdk.AlwaysSample()), sdk.WithIDGenerator(ids{}),
		sdk.WithBatcher(batches{s}, sdk.WithMaxQueueSize(mostSpans), sdk.WithExportTimeout(exportTime)),
		sdk.WithResource(resource.NewWithAttributes(semconv.SchemaURL, semconv.ServiceName("coracle"),
			semconv.ServiceVersion(version.Coracle), semconv.ServiceInstanceID(server))))
	s.tracer = s.provider.Tracer("github.com/coracle-dev/coracle/pkg/systems/workers/spans")
	return s
}

// Close exports what is left for less than a second.
func (s *Spans) Close() {
	if s != nil {
		defer time.AfterFunc(stopTime, s.stop).Stop()
		_ = s.provider.Shutdown(context.Background()) // drop has counted what failed
	}
}

func (s *Spans) drop(n int, err error) {
	s.dropped.Add(float64(n))
	s.logged.Do(func() { s.log.Warn("spans of messages were dropped", "spans", n, "error", err) })
}

// batches implements sdk.SpanExporter.
type batches struct{ *Spans }

func (b batches) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.stopped, cancel)()
	err := b.out.ExportSpans(ctx, spans)
	b.pending.Add(-int64(len(spans)))
	if err != nil {
		b.drop(len(spans), err)
	}
	return nil // the SDK would write an error to standard error
}

func (b batches) Shutdown(ctx context.Context) error { return b.out.Shutdown(ctx) }
