package rest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
)

// Server serves the API. It is a run.Component.
type Server struct {
	cfg              Config
	log              *slog.Logger
	token            *tokenFile // nil if insecure
	cluster          Cluster
	router           *router
	workers          *http.Client // for requests to external workers
	streams          chan struct{}
	bodies           chan struct{}
	reads            chan struct{}
	maxWorkers       int
	schedulePatience time.Duration
	ending           context.Context
	end              context.CancelFunc
	// Ready is closed once the socket is open.
	run.Readiness
}

// New returns a Server. It reads the token, but does not open the socket yet.
func New(c Config) (*Server, error) {
	c.Namespace = cmp.Or(c.Namespace, "default")
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg:              c,
		log:              c.Logger,
		cluster:          Cluster{c.Client},
		workers:          view.WorkerClient(0),
		maxWorkers:       maxWorkers,
		schedulePatience: schedulePatience,
		streams:          make(chan struct{}, maxStreams),
		bodies:           make(chan struct{}, maxBodies),
		reads:            make(chan struct{}, maxReads),
	}
	if !c.RESTInsecure {
		var err error
		if s.token, err = newTokenFile(c.RESTTokenFile); err != nil {
			return nil, err
		}
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.router = newRouter(s, s.resources()...)
	return s, nil
}

// slot waits for a free slot of a semaphore. The returned function releases it.
func slot(ctx context.Context, of chan struct{}) (func(), error) {
	select {
	case of <- struct{}{}:
		return func() { <-of }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// resources returns the parts of the API, in the order of its description.
func (s *Server) resources() []Resource {
	return append([]Resource{
		(*tasks)(s),
		(*nodes)(s),
		(*pods)(s),
		(*services)(s),
		(*resources)(s),
		(*bundles)(s),
		(*tables)(s),
		(*maintenance)(s),
		(*description)(s),
	}, s.cfg.Resources...)
}

// Name implements run.Component.
func (s *Server) Name() string { return "rest" }

// Handler returns the handler of all requests.
func (s *Server) Handler() http.Handler { return s.router.mux }

// drain is how long running requests may take after the end of ctx. Log streams end at once.
const drain = 5 * time.Second

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	defer s.end()
	l := s.cfg.Listener
	if l == nil {
		var err error
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.RESTAddress); err != nil {
			return err
		}
	}
	if slices.Contains(s.cfg.RESTCORSOrigins, "*") {
		warning := "pages of all domains may use the REST facade with its token"
		if s.cfg.RESTInsecure {
			warning = "any page that a browser on this machine shows may change clusters through the REST facade"
		}
		s.log.Warn(warning)
	}
	l = connlimit.New(l, connlimit.Config{Most: maxConnections, Each: maxConnectionsEach, Logger: s.log})
	h := &http.Server{
		Handler: s.Handler(), TLSConfig: s.cfg.TLS,
		ReadHeaderTimeout: 10 * time.Second, WriteTimeout: requestTimeout + writeStall, // streams replace it
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100,
			MaxReceiveBufferPerStream:     256 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() {
		if s.cfg.RESTInsecure {
			failed <- h.Serve(l)
		} else {
			failed <- h.ServeTLS(l, "", "")
		}
	}()
	s.SetReady()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.end()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := h.Shutdown(stop); err != nil {
		_ = h.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
