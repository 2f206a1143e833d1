package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/access"
	"github.com/coracle-dev/coracle/pkg/api/auditlog"
	"github.com/coracle-dev/coracle/pkg/api/fairness"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// NodeClient connects to the agents of nodes.
type NodeClient interface {
	// Connect returns the base URL of the node's HTTPS API and a transport that authenticates to it. The transport
	// should be an *http.Transport, so that upgrades (exec, attach, port-forward) can dial with its TLS settings.
	Connect(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
}

// Check is a named check of /readyz.
type Check struct {
	// Name may have slashes, as upstream's: "poststarthook/rbac/bootstrap-roles".
	Name string
	// Check returns nil if the component is healthy. Its context times out after two seconds.
	Check func(context.Context) error
	// Live includes the check in /livez and /healthz. A failure means that the process should be restarted.
	Live bool
	// Start includes the check in /healthz. It fails until the server has the objects that its first clients rely
	// on.
	Start bool
}

// Config configures a Server.
type Config struct {
	Registry *registry.Registry
	Cache    *cache.Cache
	Kinds    *kind.Catalog

	// Listener is the socket to serve; without one the server listens on Address. With neither it has no socket, and
	// only Handler can be used.
	Listener net.Listener
	Address  string
	// TLS is required with a socket. Client certificates are verified with the pool that ClientCAs returns, or
	// without it with TLS.ClientCAs. ClientCAs is called for each request and must return the same pool until the
	// CAs change.
	TLS       *tls.Config
	ClientCAs func() *x509.CertPool

	// ServiceAccountKeys returns the current public or private keys that verify service account tokens. A token must
	// have one of Issuers (the first one is published) and one of Audiences. Nil disables service account tokens.
	ServiceAccountKeys func() []any
	Issuers, Audiences []string
	// KeysURL is the published URL of the keys. Empty means /openid/v1/jwks on the host that the client calls.
	KeysURL string
	// Tokens authenticates other bearer tokens, such as join tokens of nodes. May be nil.
	Tokens authenticator.Token

	// Access, if set, authenticates further tokens and anonymous requests, and may configure the authorizers.
	Access *access.Access

	// Nodes connects to agents for log, exec, attach, port-forward and node proxy. If it is nil, these requests fail
	// with 503.
	Nodes NodeClient
	// Policies returns the network policy rules for nodes. May be nil.
	Policies kind.Policies
	// Usage serves metrics.k8s.io. If it is nil, requests for that group fail with 503.
	Usage   Usage
	Version version.Info
	Checks  []Check
	// Components are the control plane components that ComponentStatus reports.
	Components []Check
	Logger     *slog.Logger

	// Metrics is the registry of the server's metrics. /metrics serves its content and MoreMetrics. If it is nil,
	// New creates one.
	Metrics     *prometheus.Registry
	MoreMetrics []prometheus.Gatherer

	// Debug, if set, serves the paths below /debug/ to authorized users.
	Debug http.Handler

	// Flags are the options of this process, which members of system:monitoring may read at /flagz. Nil disables the
	// page.
	Flags map[string]string
	// Profiling serves Go's profiles at /debug/pprof/ to authorized users.
	Profiling bool

	// Audit, if set, receives the audit events of requests on the socket. Run writes and closes it.
	Audit *auditlog.Log

	// AlwaysAllow authorizes every request of every user.
	AlwaysAllow bool

	// CheckNode, if set, is called for each request with a node's client certificate. node is nil if no Node has the
	// name. An error refuses the certificate.
	CheckNode func(name string, node *corev1.Node, cert *x509.Certificate) error

	// Wrap, if set, wraps the socket's handler to serve further public paths, such as the path for joining nodes. It
	// must authenticate these itself.
	Wrap func(http.Handler) http.Handler

	// Fairness limits requests in flight by priority level, user and flow.
	Fairness fairness.Config
	// MaxConnections limits the socket's connections (default 8,192), MaxConnectionsPerAddress those from one client
	// address (default 1,024). Connections above a limit are closed at once.
	MaxConnections, MaxConnectionsPerAddress int
	// WriteStall is how long a client may leave a response unread before its connection or stream is closed. Default
	// 30 s.
	WriteStall time.Duration
	// RequestTimeout limits all requests except watches and streams. Default 60 s.
	RequestTimeout time.Duration
	// MinWatch is the minimum duration of a watch without timeoutSeconds; the maximum is twice as long. Default
	// 30 minutes, as upstream.
	MinWatch time.Duration
	// GoawayChance is the fraction of HTTP/2 requests after which the server sends GOAWAY, so that the client
	// reconnects.
	GoawayChance float64
	// Drain is how long requests may continue after Run's context is done. Negative means that they are aborted.
	// Default 5 s.
	Drain time.Duration
}

// Validate returns an error for missing settings.
func (c *Config) Validate() error {
	switch {
	case c.Registry == nil || c.Cache == nil || c.Kinds == nil:
		return errors.New("apiserver: Registry, Cache and Kinds are required")
	case (c.Listener != nil || c.Address != "") && c.TLS == nil:
		return errors.New("apiserver: TLS is required to serve on a socket")
	case c.ServiceAccountKeys != nil && (len(c.Issuers) == 0 || c.Issuers[0] == ""):
		return errors.New("apiserver: ServiceAccountKeys need Issuers")
	}
	return nil
}

// Server serves the Kubernetes API.
type Server struct {
	cfg      Config
	log      *slog.Logger
	auth     *auth
	info     *request.RequestInfoFactory
	fair     *fairness.Set
	metrics  *metrics
	health   *health
	failed   *failures
	about    func() http.Handler // serves /flagz and /statusz
	profiles http.Handler
	openIDs  bool // whether the issuer is published
	disc     func() *discovery
	remotes  atomic.Pointer[remotes] // nil if no APIService names a server
	openapi  func() *openapi
	handler  http.Handler
	// rest is the handler after authentication, imp the handler after impersonation.
	rest, imp http.Handler
	// Ready is closed once the socket accepts connections.
	run.Readiness
	// leaving is set by Leave. ending is done when the server stops, which ends watches and streams.
	leaving atomic.Bool
	ending  context.Context //nolint:containedctx // the server's own life
	end     context.CancelFunc
}

var _ run.Component = (*Server)(nil)

// New returns a server. Run starts it.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, 8192)
	cfg.MaxConnectionsPerAddress = cmp.Or(cfg.MaxConnectionsPerAddress, 1024)
	cfg.WriteStall = cmp.Or(cfg.WriteStall, 30*time.Second)
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, 60*time.Second)
	cfg.MinWatch = cmp.Or(cfg.MinWatch, 30*time.Minute)
	cfg.Drain = cmp.Or(cfg.Drain, 5*time.Second)
	if cfg.Metrics == nil {
		cfg.Metrics = prometheus.NewRegistry()
	}
	logging := newLogging(cfg.Logger.Handler())
	cfg.Logger = slog.New(logging)
	s := &Server{
		cfg: cfg, log: cfg.Logger, failed: newFailures(cfg.Logger),
		info: &request.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		fair: fairness.New(cfg.Fairness),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	var err error
	if s.auth, err = newAuth(cfg); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	s.openIDs = s.discoverable()
	s.about = sync.OnceValue(s.zpages)
	s.profiles = profiles()
	cfg.Registry.UseAuthorizer(authorizer.AuthorizerFunc(s.auth.Authorize))
	cfg.Registry.UseReviews(s.answer)
	s.disc = s.withRemotes(kind.Derive(cfg.Kinds, newDiscovery))
	s.metrics = newMetrics(cfg, s.fair)
	s.health = newHealth(cfg, s.ending, &s.leaving, logging)
	docs := &documents{}
	s.openapi = kind.Derive(cfg.Kinds, func(t *kind.Table) *openapi { return newOpenAPI(t, cfg.Version, docs) })
	s.handler = s.filters()
	return s, nil
}

// Name is "apiserver".
func (s *Server) Name() string { return "apiserver" }

// Fairness returns the state of the priority levels. Each lists at most flows of its busiest flows.
func (s *Server) Fairness(flows int) []fairness.Level { return s.fair.Report(flows) }

// ConfigureFairness replaces the configuration of API Priority and Fairness. It keeps the objects: the caller must
// not change them.
func (s *Server) ConfigureFairness(levels []*flowcontrolv1.PriorityLevelConfiguration,
	schemas []*flowcontrolv1.FlowSchema) {
	s.fair.Configure(levels, schemas)
}

// Handler serves the API without a socket. A user in the request's context
// (k8s.io/apiserver/pkg/endpoints/request.WithUser) is taken as authenticated.
func (s *Server) Handler() http.Handler { return s.handler }

// Leave makes /readyz fail, as during a shutdown, so that load balancers send no more requests. Requests are still
// served.
func (s *Server) Leave() { s.leaving.Store(true) }

// maxHeader limits a request's header and path, in bytes. Each of a connection's 1,000 streams may use that much.
const maxHeader = 64 << 10

// Run serves until ctx is done. Then it refuses new connections, ends watches, and waits up to Config.Drain for
// other requests.
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
			return fmt.Errorf("could not listen on %s: %w; is another API server running there?", s.cfg.Address, err)
		}
	}
	if l == nil {
		s.SetReady()
		<-ctx.Done()
		s.end()
		return nil
	}
	t := s.cfg.TLS.Clone()
	if t.ClientAuth == tls.NoClientCert {
		t.ClientAuth = tls.RequestClientCert
	}
	t.DynamicRecordSizingDisabled = true // small first records help distant browsers, not API clients
	t.NextProtos = []string{"h2", "http/1.1"}
	t.MinVersion = cmp.Or(t.MinVersion, tls.VersionTLS12)
	if s.cfg.ClientCAs != nil {
		asked := s.cfg.ClientCAs
		if s.cfg.Access != nil {
			asked = (&hints{clients: asked, proxy: s.cfg.Access.ProxyAuthorities}).pool
		}
		t = pki.FollowClientCAs(t, asked)
	}
	h := s.httpServer(t)
	failed := make(chan error, 1)
	limited := connlimit.New(l, connlimit.Config{
		Most: s.cfg.MaxConnections, Each: s.cfg.MaxConnectionsPerAddress, Logger: s.log,
		Opened: func(open int) { s.metrics.connections.open.Set(float64(open)) }, Refused: s.metrics.connections.refused.Inc,
	})
	go func() { failed <- h.ServeTLS(gathering{limited, s.cfg.WriteStall}, "", "") }()
	s.SetReady()
	select {
	case err := <-failed:
		s.end()
		return err
	case <-ctx.Done():
	}
	s.end()
	if s.cfg.Drain > 0 {
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
		defer done()
		_ = h.Shutdown(stop)
	}
	_ = h.Close() // drop the remaining connections
	<-failed
	return nil
}

// httpServer returns the API's HTTP server, for connections of any listener.
func (s *Server) httpServer(t *tls.Config) *http.Server {
	handler := s.handler
	if s.cfg.Wrap != nil {
		handler = s.cfg.Wrap(handler)
	}
	return &http.Server{
		Handler:           readBodiesWithin(s.cfg.RequestTimeout, handler),
		TLSConfig:         t,
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      s.cfg.RequestTimeout + s.cfg.WriteStall, // removed for watches and streams
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withConnection,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		// client-go uses one connection for all informers of a process, hence 1,000 streams. The windows suit many
		// small bodies.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerStream: 256 << 10,
			MaxReceiveBufferPerConnection: 1 << 20},
	}
}

// audit writes audit events until the caller calls the returned function, which waits for the last event.
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

// living returns a context that also ends when the server stops. The caller must call the returned function.
func (s *Server) living(ctx context.Context) (context.Context, context.CancelFunc) {
	both, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ending, cancel)
	return both, func() { stop(); cancel() }
}
