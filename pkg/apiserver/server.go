package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/apiserver/auditlog"
	"github.com/coracle-dev/coracle/pkg/apiserver/fairness"
	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/connlimit"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/pki"
	"github.com/coracle-dev/coracle/pkg/registry"
	"github.com/coracle-dev/coracle/pkg/run"
)

// NodeClient knows how to reach the agent of a node.
type NodeClient interface {
	// Connect gives the base URL of the node's HTTPS API and a transport that authenticates to it. The
	// transport should be an *http.Transport, so that upgrades (exec, attach, port-forward) can dial with its TLS settings.
	Connect(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
}

// Check is one named part of /readyz.
type Check struct {
	// Name may have slashes, as upstream's: "poststarthook/rbac/bootstrap-roles".
	Name string
	// Check returns nil if the part is well. Its context ends after two seconds.
	Check func(context.Context) error
	// Live makes it a part of /livez and /healthz too: a process of which it fails should be started again.
	Live bool
}

// Config says what a Server serves and to whom.
type Config struct {
	Registry *registry.Registry
	Cache    *cache.Cache
	Kinds    *kind.Catalog

	// Listener is what to serve on; if nil, Address is listened on. With neither, the server has no socket
	// and only Handler can be used.
	Listener net.Listener
	Address  string
	// TLS is required with a socket. Its ClientCAs are the authorities whose client certificates are believed, unless
	// ClientCAs is given: then it is those that it returns at each request, the same pool until they change.
	TLS       *tls.Config
	ClientCAs func() *x509.CertPool

	// ServiceAccountKeys gives the public (or private) keys that verify service account tokens at present; Issuer and
	// Audiences are what such tokens must carry. If it is nil there are no service account tokens.
	ServiceAccountKeys func() []any
	Issuer             string
	Audiences          []string
	// Tokens authenticates other bearer tokens, such as those with which nodes join. May be nil.
	Tokens authenticator.Token

	// Nodes reaches the agents for log, exec, attach, port-forward and node proxy. Without it they answer 503.
	Nodes   NodeClient
	Version version.Info
	Checks  []Check
	// Components are the parts of the control plane that ComponentStatus tells of.
	Components []Check
	Logger     *slog.Logger

	// Metrics is where the server registers its metrics; /metrics serves all that it holds, and MoreMetrics. New makes one if it
	// is nil.
	Metrics     *prometheus.Registry
	MoreMetrics []prometheus.Gatherer

	// Debug, if not nil, serves paths below /debug/, to those who may get them.
	Debug http.Handler

	// Audit, if not nil, gets an event of each request on the socket, as its policy says. Run writes and closes it.
	Audit *auditlog.Log

	// CheckNode, if not nil, is asked before a client certificate of a node is believed, in each request, with the Node of that
	// name, which is nil if there is none. An error refuses the certificate.
	CheckNode func(name string, node *corev1.Node, cert *x509.Certificate) error

	// Wrap, if not nil, goes around the handler on the socket: it serves further public paths, such as that by which
	// nodes join, and authenticates them itself.
	Wrap func(http.Handler) http.Handler

	// Fairness bounds requests in flight, by priority level, user and flow.
	Fairness fairness.Config
	// MaxConnections bounds the connections to the socket (8,192 if zero), MaxConnectionsPerAddress those of one client
	// address (1,024 if zero). One beyond is closed at once. See connections.
	MaxConnections, MaxConnectionsPerAddress int
	// WriteStall is how long a client may leave what it was sent unread, before its connection or stream is closed; 30 s if zero.
	WriteStall time.Duration
	// RequestTimeout ends requests that are not watches or streams; 60 s if zero.
	RequestTimeout time.Duration
}

// Validate names what is missing.
func (c *Config) Validate() error {
	switch {
	case c.Registry == nil || c.Cache == nil || c.Kinds == nil:
		return errors.New("apiserver: Registry, Cache and Kinds are required")
	case (c.Listener != nil || c.Address != "") && c.TLS == nil:
		return errors.New("apiserver: TLS is required to serve on a socket")
	case c.ServiceAccountKeys != nil && c.Issuer == "":
		return errors.New("apiserver: ServiceAccountKeys need an Issuer")
	}
	return nil
}

// Server serves the Kubernetes API.
type Server struct {
	cfg     Config
	log     *slog.Logger
	auth    *auth
	info    *request.RequestInfoFactory
	fair    *fairness.Set
	metrics *metrics
	health  *health
	failed  failures
	disc    func() *discovery
	openapi func() *openapi
	handler http.Handler
	// rest is what follows authentication, and imp what follows impersonation.
	rest, imp http.Handler
	ready     chan struct{}
	// ending ends when the server stops, and with it watches and streams.
	ending context.Context //nolint:containedctx // the server's own life
	end    context.CancelFunc
}

var _ run.Component = (*Server)(nil)

// New makes a server; it starts nothing.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = 8192
	}
	if cfg.MaxConnectionsPerAddress == 0 {
		cfg.MaxConnectionsPerAddress = 1024
	}
	if cfg.WriteStall == 0 {
		cfg.WriteStall = 30 * time.Second
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = 60 * time.Second
	}
	if cfg.Metrics == nil {
		cfg.Metrics = prometheus.NewRegistry()
	}
	logging := newLogging(cfg.Logger.Handler())
	cfg.Logger = slog.New(logging)
	s := &Server{
		cfg: cfg, log: cfg.Logger, failed: failures{log: cfg.Logger},
		info: &request.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		fair:  fairness.New(cfg.Fairness),
		ready: make(chan struct{}),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	var err error
	if s.auth, err = newAuth(cfg); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	cfg.Registry.UseAuthorizer(authorizer.AuthorizerFunc(s.auth.Authorize))
	cfg.Registry.UseReviews(s.answer)
	s.disc = kind.Derive(cfg.Kinds, newDiscovery)
	s.metrics = newMetrics(cfg, s.fair)
	s.health = newHealth(cfg, s.ending, logging)
	docs := &documents{}
	s.openapi = kind.Derive(cfg.Kinds, func(t *kind.Table) *openapi { return newOpenAPI(t, cfg.Version, docs) })
	s.handler = s.filters()
	return s, nil
}

// Name is "apiserver".
func (s *Server) Name() string { return "apiserver" }

// Ready is closed once the socket accepts connections.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Fairness describes the priority levels, each with up to flows of its busiest flows.
func (s *Server) Fairness(flows int) []fairness.Level { return s.fair.Report(flows) }

// Handler is the API without a socket. A request whose context carries a user
// (k8s.io/apiserver/pkg/endpoints/request.WithUser) is taken to be that user's.
func (s *Server) Handler() http.Handler { return s.handler }

// maxHeader bounds, in bytes, the header and path of a request: with 1,000 streams on a connection, each may hold that much.
const maxHeader = 64 << 10

// drain is how long requests may go on after the end of Run's context.
const drain = 5 * time.Second

// Run serves until ctx ends, then refuses new connections, ends watches, and waits up to five seconds for the rest.
func (s *Server) Run(ctx context.Context) error {
	stopGraph := make(chan struct{})
	graphCtx, cancel := context.WithCancel(ctx)
	go func() { defer close(stopGraph); s.auth.feedGraph(graphCtx) }()
	defer func() { cancel(); <-stopGraph }()
	defer s.audit(ctx)()

	l := s.cfg.Listener
	if l == nil && s.cfg.Address != "" {
		var err error
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address); err != nil {
			return fmt.Errorf("cannot listen on %s: %w; is another API server running there?", s.cfg.Address, err)
		}
	}
	if l == nil {
		close(s.ready)
		<-ctx.Done()
		s.end()
		return nil
	}
	t := s.cfg.TLS.Clone()
	if t.ClientAuth == tls.NoClientCert {
		t.ClientAuth = tls.RequestClientCert
	}
	t.DynamicRecordSizingDisabled = true // small first records help distant browsers, not clients of this API
	t.NextProtos = []string{"h2", "http/1.1"}
	if t.MinVersion == 0 {
		t.MinVersion = tls.VersionTLS12
	}
	if s.cfg.ClientCAs != nil {
		t = pki.FollowClientCAs(t, s.cfg.ClientCAs)
	}
	handler := s.handler
	if s.cfg.Wrap != nil {
		handler = s.cfg.Wrap(handler)
	}
	h := &http.Server{
		Handler:           readBodiesWithin(s.cfg.RequestTimeout, handler),
		TLSConfig:         t,
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      s.cfg.RequestTimeout + s.cfg.WriteStall, // watches and streams lift it
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withConnection,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		// 1,000 streams: client-go puts all informers of a process on one connection. The rest of HTTP/2's
		// windows are sized for large uploads of small bodies.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerStream: 256 << 10,
			MaxReceiveBufferPerConnection: 1 << 20},
	}
	failed := make(chan error, 1)
	limited := connlimit.New(l, connlimit.Config{
		Most: s.cfg.MaxConnections, Each: s.cfg.MaxConnectionsPerAddress, Logger: s.log,
		Opened: func(open int) { s.metrics.connections.open.Set(float64(open)) }, Refused: s.metrics.connections.refused.Inc,
	})
	go func() { failed <- h.ServeTLS(gathering{limited, s.cfg.WriteStall}, "", "") }()
	close(s.ready)
	select {
	case err := <-failed:
		s.end()
		return err
	case <-ctx.Done():
	}
	s.end()
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer done()
	if err := h.Shutdown(stop); err != nil {
		_ = h.Close()
	}
	<-failed
	return nil
}

// audit writes audit events until the function that it returns is called, which waits for the last one.
func (s *Server) audit(ctx context.Context) func() {
	if s.cfg.Audit == nil {
		return func() {}
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.cfg.Audit.Run(own); err != nil {
			s.log.Error("could not close the audit log", "error", err)
		}
	}()
	return func() { cancel(); <-done }
}

// living is ctx, ended also by the end of the server. The function must be called.
func (s *Server) living(ctx context.Context) (context.Context, context.CancelFunc) {
	both, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ending, cancel)
	return both, func() { stop(); cancel() }
}
