package ingress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
)

// Limits of requests and connections: in total and per client address, and of requests also per namespace, whose
// backends may be slow. The last quarter of a total is for clients and namespaces with few (connlimit.Share).
const (
	maxConnections          = 4096
	maxConnectionsEach      = 512
	maxRequests             = 4096
	maxRequestsEach         = 512
	maxRequestsPerNamespace = 2048
	maxStreams              = 128      // per HTTP/2 connection
	maxHeader               = 32 << 10 // size of a request's header in bytes
	maxIdleEach             = 64       // idle connections per endpoint

	headerTimeout  = 10 * time.Second // for reading a request's header
	idleTimeout    = 2 * time.Minute  // for a connection without requests
	stallTimeout   = time.Minute      // per read of a request's body and per write of a response
	connectTimeout = 3 * time.Second
	answerTimeout  = 5 * time.Minute // for a backend's response header
	maxAttempts    = 3               // endpoints to try if connecting fails
)

type handler struct {
	table     atomic.Pointer[table]
	proxy     *httputil.ReverseProxy
	transport *http.Transport // HTTP/1.1
	h2c       *http.Transport
	httpsPort string // ":" and port in redirects to HTTPS; empty for 443
	https     bool
	stall     time.Duration // stallTimeout, except in tests

	mu         sync.Mutex
	clients    *connlimit.Share[netip.Addr]
	namespaces *connlimit.Share[string]
}

func newHandler(log *slog.Logger, https bool, httpsPort uint16) *handler {
	h := &handler{
		https: https, stall: stallTimeout,
		clients:    connlimit.NewShare[netip.Addr](maxRequests, maxRequestsEach),
		namespaces: connlimit.NewShare[string](maxRequests, maxRequestsPerNamespace),
	}
	if httpsPort != 443 {
		h.httpsPort = ":" + netip.AddrPortFrom(netip.IPv4Unspecified(), httpsPort).String()[len("0.0.0.0:"):]
	}
	h.table.Store(build(nil, reader{}))
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	h.transport = &http.Transport{
		DialContext: dialer.DialContext, DisableCompression: true, MaxIdleConns: 1024, MaxIdleConnsPerHost: maxIdleEach,
		IdleConnTimeout:       90 * time.Second,
		ResponseHeaderTimeout: answerTimeout, MaxResponseHeaderBytes: 256 << 10, ExpectContinueTimeout: time.Second,
	}
	h.h2c = h.transport.Clone()
	h.h2c.Protocols = new(http.Protocols)
	h.h2c.Protocols.SetUnencryptedHTTP2(true)
	h.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: h, FlushInterval: -1, BufferPool: &buffers{}, ErrorHandler: failed,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return h
}

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

type routeKey struct{}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	client := from.Addr().Unmap()
	if !enter(h, h.clients, client) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	defer leave(h, h.clients, client)
	if r.Method == http.MethodConnect || r.Host == "" || r.URL.Path == "" || r.URL.Path[0] != '/' && r.URL.Path != "*" ||
		dotted(r.URL.Path) {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	to := h.table.Load().route(r.Host, r.URL.Path)
	switch {
	case to == nil:
		http.Error(w, "no Ingress has a rule for this host and path", http.StatusNotFound)
		return
	case to.redirect && r.TLS == nil && h.https:
		name := hostname(r.Host)
		http.Redirect(w, r, "https://"+name+h.httpsPort+r.URL.RequestURI(), http.StatusPermanentRedirect)
		return
	case to.backend.handler == nil && len(to.backend.endpoints) == 0:
		http.Error(w, "no endpoint is available", http.StatusServiceUnavailable)
		return
	}
	if !enter(h, h.namespaces, to.owner.Namespace) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests to the host's namespace", http.StatusServiceUnavailable)
		return
	}
	defer leave(h, h.namespaces, to.owner.Namespace)
	control := http.NewResponseController(w)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &body{ReadCloser: r.Body, control: control, stall: h.stall}
	}
	out := &writer{w, control, h.stall}
	if to.backend.handler != nil {
		to.backend.handler.ServeHTTP(out, r)
		return
	}
	h.proxy.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), routeKey{}, to.backend)))
}

func enter[K comparable](h *handler, s *connlimit.Share[K], holder K) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.Enter(holder)
}

func leave[K comparable](h *handler, s *connlimit.Share[K], holder K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Leave(holder)
}

// forwarded are headers about the client and the original request that ReverseProxy does not remove. They are not
// passed on if a client sends them.
var forwarded = map[string]bool{
	"Forwarded": true, "X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true,
	"X-Forwarded-Port":   true,
	"X-Forwarded-Server": true, "X-Forwarded-Prefix": true, "X-Forwarded-Scheme": true, "X-Forwarded-Ssl": true,
	"X-Real-Ip": true, "X-Original-Url": true, "X-Rewrite-Url": true,
	"X-Original-Forwarded-For": true, "X-Scheme": true,
}

func rewrite(p *httputil.ProxyRequest) {
	for name := range p.Out.Header {
		// Many backends do not distinguish X_Real_IP from X-Real-IP.
		if forwarded[textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))] {
			delete(p.Out.Header, name)
		}
	}
	// Do not upgrade to h2c: further requests on the connection would bypass the routes.
	if upgrade := p.Out.Header.Get("Upgrade"); upgrade != "" && strings.Contains(strings.ToLower(upgrade), "h2c") {
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
	p.Out.Header.Del("Http2-Settings")
	p.Out.URL.Scheme, p.Out.URL.Host = "http", p.In.Host // RoundTrip replaces Host by the endpoint
	p.SetXForwarded()
	host, _, _ := net.SplitHostPort(p.In.RemoteAddr)
	p.Out.Header.Set("X-Real-Ip", host)
	port := "80"
	if p.In.TLS != nil {
		port = "443"
	}
	if a, ok := p.In.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		port = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(a.Port)).String()[len("0.0.0.0:"):]
	}
	p.Out.Header.Set("X-Forwarded-Port", port)
}

// RoundTrip implements http.RoundTripper: it sends a request to an endpoint. If it cannot connect, it tries the next
// endpoint, unless the request has a body or a method that is not idempotent.
func (h *handler) RoundTrip(r *http.Request) (*http.Response, error) {
	b, ok := r.Context().Value(routeKey{}).(*backend)
	if !ok {
		return nil, errors.New("the request has no route")
	}
	via := h.transport
	switch {
	case b.secured != nil:
		via = b.secured.via(r)
		r.URL.Scheme = "https"
	case b.h2c:
		via = h.h2c
	}
	attempts := 1
	if r.Body == nil || r.Body == http.NoBody {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
			attempts = min(maxAttempts, len(b.endpoints))
		}
	}
	first := b.next.Add(1)
	for attempt := 0; ; attempt++ {
		to := r
		if attempt > 0 {
			to = r.Clone(r.Context())
		}
		to.URL.Host = b.pick(attempt, first).String()
		response, err := via.RoundTrip(to)
		if err == nil || attempt+1 >= attempts || !connecting(err) {
			return response, err
		}
	}
}

// connecting reports whether the connection failed, so that nothing was sent.
func connecting(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func failed(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway
	var timeout net.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	case connecting(err):
		status = http.StatusServiceUnavailable
	case errors.As(err, &timeout) && timeout.Timeout():
		status = http.StatusGatewayTimeout
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client is gone
	}
	http.Error(w, strings.ToLower(http.StatusText(status)), status)
}

// body is a request's body that fails if the client stalls.
type body struct {
	io.ReadCloser
	control *http.ResponseController
	stall   time.Duration
}

func (b *body) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.stall))
	n, err := b.ReadCloser.Read(p)
	_ = b.control.SetReadDeadline(time.Time{})
	return n, err
}

// writer is a response that fails if the client stalls. The deadline applies to each write alone, since a backend
// may pause for any time between writes.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

func (w *writer) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
	n, err := w.ResponseWriter.Write(p)
	_ = w.control.SetWriteDeadline(time.Time{})
	return n, err
}

// FlushError implements the interface that http.ResponseController uses. ReverseProxy calls it after each write.
func (w *writer) FlushError() error {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
	err := w.control.Flush()
	_ = w.control.SetWriteDeadline(time.Time{})
	return err
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
