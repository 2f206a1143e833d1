package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/coracle-dev/coracle/test/host"
)

// spans is an OTLP collector.
type spans struct {
	collector.UnimplementedTraceServiceServer
	got chan *tracepb.Span
}

func (s spans) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (
	*collector.ExportTraceServiceResponse, error,
) {
	for _, r := range req.ResourceSpans {
		for _, scope := range r.ScopeSpans {
			for _, span := range scope.Spans {
				s.got <- span
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// TestMessageSpans checks that a collector gets the span whose context the program got.
func TestMessageSpans(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	t.Setenv("TRACEPARENT", "00-"+trace+"-"+parent+"-01")
	h := host.New(t)
	l, err := h.Listen("tcp", "127.0.0.1:4317")
	require.NoError(t, err)
	c := spans{got: make(chan *tracepb.Span, 10)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	const text = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	h.Start("--message-tracing-config", file)
	h.Apply(fmt.Sprintf(shell, "traced", "sed -n 's/\\r//; s/^ *Traceparent: //p' /tmp/headers", ""))
	h.Ctl("wait worker/traced --for=condition=Ready --timeout=60s")
	seen := strings.TrimSpace(h.Run("send", "service/traced", "hello", "--wait"))
	select {
	case span := <-c.got:
		require.Equal(t, "00-"+trace+"-"+hex.EncodeToString(span.SpanId)+"-01", seen)
		require.Equal(t, []string{trace, parent, "process default/traced"},
			[]string{hex.EncodeToString(span.TraceId), hex.EncodeToString(span.ParentSpanId), span.Name})
	case <-time.After(host.Patience):
		t.Fatal("the collector got no span")
	}
}
