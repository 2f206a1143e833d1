package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

// outsideHealth is the component that serves health and metrics of a process without an API server: /livez, /readyz
// and /metrics over HTTP, and the gRPC health service (grpc.health.v1). They share one port, without TLS.
type outsideHealth struct {
	listener net.Listener
	server   *http.Server
	health   *grpchealth.Server
	settled  <-chan struct{} // closed once the process is ready
	run.Readiness
}

func newOutsideHealth(l net.Listener, metrics prometheus.Gatherer, settled <-chan struct{}) *outsideHealth {
	h := &outsideHealth{listener: l, health: grpchealth.NewServer(), settled: settled}
	h.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	rpc := grpc.NewServer(grpc.MaxRecvMsgSize(1 << 12))
	grpc_health_v1.RegisterHealthServer(rpc, h.health)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-settled:
			alive(w, r)
		default:
			http.Error(w, "not ready: caches are not synced yet, or the API server does not answer",
				http.StatusServiceUnavailable)
		}
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	h.server = &http.Server{
		Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
				rpc.ServeHTTP(w, r)
				return
			}
			mux.ServeHTTP(w, r)
		}),
	}
	return h
}

func (h *outsideHealth) Name() string { return "health" }
func (h *outsideHealth) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() {
		ended <- h.server.Serve(connlimit.New(h.listener, connlimit.Config{Most: 64, Each: 64, Logger: slog.Default()}))
	}()
	h.SetReady()
	settled := h.settled
	for {
		select {
		case <-settled:
			h.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
			settled = nil
		case err := <-ended:
			return err
		case <-ctx.Done():
			h.health.Shutdown()
			err := h.server.Close()
			if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
				err = errors.Join(err, served)
			}
			return err
		}
	}
}
