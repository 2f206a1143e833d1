package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/control/election"
)

// outsideHealth is the component that serves health and metrics of a process without an API server: /livez, /readyz
// and /metrics over HTTP, and the gRPC health service (grpc.health.v1). They share one port, without TLS.
type outsideHealth struct {
	listener net.Listener
	server   *http.Server
	serving  *serving
	run.Readiness
}

// serving is whether a process without an API server works or stands by: it stops when the API server does not answer
// or the Lease is lost. It is served as gRPC health and as /readyz.
type serving struct {
	*grpchealth.Server
	mu sync.Mutex
	// settled: the components of this term are ready, or another process leads. answered: so did the API server last.
	settled, answered bool
}

func newServing() *serving {
	s := &serving{Server: grpchealth.NewServer()}
	s.set(&s.answered, true)
	return s
}

// set changes one of the fields.
func (s *serving) set(field *bool, value bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*field = value
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if s.settled && s.answered {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.SetServingStatus("", status)
}

func (s *serving) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled && s.answered
}

// servedElection is an Election that reports its terms: settled when another process leads, not when a term begins or
// ends. The last component of a term (servedTerm) reports that the others are ready.
type servedElection struct {
	*election.Election
	*serving
}

func (e servedElection) Run(ctx context.Context, lead func(context.Context) error, settled func()) error {
	return e.Election.Run(ctx, func(term context.Context) error {
		e.set(&e.serving.settled, false)
		defer e.set(&e.serving.settled, false)
		return lead(term)
	}, func() {
		if !e.Leads() {
			e.set(&e.serving.settled, true)
		}
		settled()
	})
}

type servedTerm struct {
	*serving
	run.Readiness
}

func (t *servedTerm) Name() string { return "serving" }
func (t *servedTerm) Run(ctx context.Context) error {
	t.set(&t.settled, true)
	t.SetReady()
	<-ctx.Done()
	return nil
}

func newOutsideHealth(l net.Listener, metrics prometheus.Gatherer, s *serving) *outsideHealth {
	h := &outsideHealth{listener: l, serving: s}
	rpc := grpc.NewServer(grpc.MaxRecvMsgSize(1 << 12))
	grpc_health_v1.RegisterHealthServer(rpc, s)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if s.ready() {
			alive(w, r)
			return
		}
		http.Error(w, "not ready: caches are not synced yet, the Lease was lost, or the API server does not answer",
			http.StatusServiceUnavailable)
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
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		h.serving.Shutdown()
		err := h.server.Close()
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}
}
