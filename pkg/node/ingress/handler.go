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
)

// The limits of requests and connections. Requests above maxRequests, in total or of one client, get 503 and 429.
const (
	maxConnections     = 4096
	maxConnectionsEach = 512
	maxRequests        = 4096
	maxRequestsEach    = 512
	maxStreams         = 128      // of one HTTP/2 connection
	maxHeader          = 32 << 10 // bytes of a request's header
	maxIdleEach        = 64       // idle connections to one endpoint

	headerTimeout  = 10 * time.Second // until a request's header is complete
	idleTimeout    = 2 * time.Minute  // of a connection without requests
	stallTimeout   = time.Minute      // without a byte of a body that the client sends, or takes
	connectTimeout = 3 * time.Second
	answerTimeout  = 5 * time.Minute // until a backend begins to answer
	maxAttempts    = 3               // endpoints that are tried if connecting fails
)

// handler routes requests by the current table.
type handler struct {
	table     atomic.Pointer[table]
	proxy     *httputil.ReverseProxy
	transport *http.Transport // HTTP/1.1
	h2c       *http.Transport
	httpsPort string // to which to redirect; empty if it is the scheme's own
	https     bool
	stall     time.Duration // see stallTimeout

	mu       sync.Mutex
	requests int
	of       map[netip.Addr]int
}

func newHandler(log *slog.Logger, https bool, httpsPort uint16) *handler {
	h := &handler{of: map[netip.Addr]int{}, https: https, stall: stallTimeout}
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

// buffers is an httputil.BufferPool.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

type routeKey struct{}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	client := from.Addr().Unmap()
	if status := h.enter(client); status != 0 {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", status)
		return
	}
	defer h.leave(client)
	if r.Method == http.MethodConnect || r.Host == "" || r.URL.Path == "" || r.URL.Path[0] != '/' && r.URL.Path != "*" ||
		dotted(r.URL.Path) {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	to := h.table.Load().route(r.Host, r.URL.Path)
	switch {
	case to == nil:
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	case to.redirect && r.TLS == nil && h.https:
		name := hostname(r.Host)
		http.Redirect(w, r, "https://"+name+h.httpsPort+r.URL.RequestURI(), http.StatusPermanentRedirect)
		return
	case len(to.backend.endpoints) == 0:
		http.Error(w, "no endpoint is available", http.StatusServiceUnavailable)
		return
	}
	control := http.NewResponseController(w)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &body{ReadCloser: r.Body, control: control, stall: h.stall}
	}
	h.proxy.ServeHTTP(&writer{w, control, h.stall}, r.WithContext(context.WithValue(r.Context(), routeKey{}, to.backend)))
}

// enter counts a request, or returns the status with which it is refused.
func (h *handler) enter(client netip.Addr) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.requests >= maxRequests:
		return http.StatusServiceUnavailable
	case h.of[client] >= maxRequestsEach:
		return http.StatusTooManyRequests
	}
	h.requests++
	h.of[client]++
	return 0
}

func (h *handler) leave(client netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests--
	if h.of[client]--; h.of[client] == 0 {
		delete(h.of, client)
	}
}

// forwarded are headers that say who the client is, besides those that ReverseProxy removes. What a client sends is not
// passed on.
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
	// A backend that changed to HTTP/2 within the connection would be out of reach of the routes.
	if upgrade := p.Out.Header.Get("Upgrade"); upgrade != "" && strings.Contains(strings.ToLower(upgrade), "h2c") {
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
	p.Out.Header.Del("Http2-Settings")
	p.Out.URL.Scheme, p.Out.URL.Host = "http", p.In.Host // RoundTrip chooses the endpoint
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

// RoundTrip implements http.RoundTripper: it sends a request to an endpoint. If it cannot connect, it tries the next,
// unless the request has a body or might not be safe to repeat.
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

// connecting reports whether an error says that there was no connection, so that nothing was sent.
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

// body is a request's body whose client must not stall.
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

// writer is a response that its client must take. The deadline is for each write alone: a backend may be silent for as
// long as it likes.
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

// FlushError is called after each write.
func (w *writer) FlushError() error {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
	err := w.control.Flush()
	_ = w.control.SetWriteDeadline(time.Time{})
	return err
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
