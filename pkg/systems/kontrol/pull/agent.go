package pull

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// Account is the prefix of the agents' service accounts in kube-system. The cluster's name follows it.
	Account = "kontrol-pull-"
	subject = "system:serviceaccount:kube-system:" + Account

	maxToken     = 256 << 10 // bytes of the token file, with certificates
	dialPatience = 15 * time.Second
	// The pause after a failed connection grows from retryFirst to retryMost, give or take half.
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// Agent connects a cluster to a hub.
type Agent struct {
	// Hubs are the https URLs of the hub's API servers, tried in turn.
	Hubs []string
	// TokenFile has the token in its first line. PEM certificates of the hub's authorities may follow; without them the
	// system's authorities are trusted. The file is read for each connection.
	TokenFile string
	// Target is the URL of the cluster's API. Transport adds the agent's credentials.
	Target    *url.URL
	Transport http.RoundTripper
	Log       *slog.Logger
}

// Run keeps a connection open until ctx ends, and then returns nil. It returns an error at the start if the hubs or
// the token file are invalid; later errors are logged and retried.
func (a *Agent) Run(ctx context.Context) error {
	var hubs []*url.URL
	for _, h := range a.Hubs {
		u, err := url.Parse(h)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
			u.RawQuery != "" {
			return fmt.Errorf("--hub %q is not a URL such as https://hub.example.com:6443", h)
		}
		hubs = append(hubs, u)
	}
	if len(hubs) == 0 {
		return errors.New("--hub is required: the URL of the hub's API server")
	}
	if _, err := readToken(a.TokenFile); err != nil {
		return err
	}
	handler := a.handler()
	rounds := 0 // over all hubs, without a lasting connection
	for i := 0; ; i++ {
		began := time.Now()
		err := a.connect(ctx, hubs[i%len(hubs)], handler)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errEnded) && time.Since(began) > retryMost { // the hub ends connections after an hour
			a.Log.Info("the connection to the hub has ended, connecting again", "hub", hubs[i%len(hubs)].Host)
			rounds = 0
			i--
			continue
		}
		wait := backoff.Jittered(backoff.Pause(retryFirst, retryMost, rounds+1))
		a.Log.Warn("not connected to the hub, retrying", "hub", hubs[i%len(hubs)].Host, "error", err, "retry",
			wait.Round(time.Millisecond))
		if (i+1)%len(hubs) == 0 {
			rounds++
		}
		if !backoff.Sleep(ctx, wait) {
			return nil
		}
	}
}

type credentials struct {
	token, cluster string
	roots          *x509.CertPool
}

func readToken(file string) (c credentials, err error) {
	data, err := bounded.Configured(file, maxToken)
	if err != nil {
		return c, err
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	c.token = strings.TrimSpace(first)
	parts := strings.Split(c.token, ".")
	if len(parts) != 3 {
		return c, fmt.Errorf("%s does not begin with a token of `coracle kontrol clusters add NAME --pull`", file)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct{ Sub string }
	if err == nil {
		err = json.Unmarshal(payload, &claims)
	}
	name, ok := strings.CutPrefix(claims.Sub, subject)
	if err != nil || !ok || name == "" || strings.ContainsAny(name, "/?#%") {
		return c, fmt.Errorf("the token in %s names no cluster: create one with `coracle kontrol clusters add NAME --pull`",
			file)
	}
	c.cluster = name
	if rest = strings.TrimSpace(rest); rest != "" {
		c.roots = x509.NewCertPool()
		if !c.roots.AppendCertsFromPEM([]byte(rest)) {
			return c, fmt.Errorf("%s has data after the token that is not a PEM certificate", file)
		}
	}
	return c, nil
}

var errEnded = errors.New("the connection has ended")

// connect opens one connection and serves the hub's requests until it ends. The error is never nil.
func (a *Agent) connect(ctx context.Context, hub *url.URL, h http.Handler) error {
	c, err := readToken(a.TokenFile)
	if err != nil {
		return err
	}
	dial, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	address := hub.Host
	if hub.Port() == "" {
		address = net.JoinHostPort(hub.Hostname(), "443")
	}
	d := &tls.Dialer{
		Config: &tls.Config{
			RootCAs:    c.roots,
			MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"},
			ServerName: hub.Hostname(),
		},
	}
	conn, err := d.DialContext(dial, "tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	upgraded, err := upgrade(dial, conn, hub.Host, c)
	if err != nil {
		return err
	}
	a.Log.Info("connected to the hub", "hub", hub.Host, "cluster", c.cluster)
	serve(upgraded, h)
	return errEnded
}

// upgrade asks the hub to use the connection for its requests. The caller must use the returned connection.
func upgrade(ctx context.Context, conn net.Conn, host string, c credentials) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"https://"+host+"/apis/kontrol.coracle.dev/v1alpha1/clusters/"+c.cluster+"/tunnel", http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	req.Header.Set("User-Agent", "coracle-agent-kontrol")
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxHeader))
	res, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(res.Header.Get("Upgrade"), Protocol) {
		defer res.Body.Close()
		body, _ := bounded.All(res.Body, 64<<10)
		var status struct{ Message string }
		if json.Unmarshal(body, &status) != nil || status.Message == "" {
			status.Message = strings.TrimSpace(string(body))
		}
		return nil, fmt.Errorf("the hub answers %s: %s", res.Status, status.Message)
	}
	_ = conn.SetDeadline(time.Time{})
	early, err := r.Peek(r.Buffered())
	if err != nil {
		return nil, err
	}
	return &buffered{Conn: conn, first: bytes.NewReader(bytes.Clone(early))}, nil
}

// buffered is a connection whose first bytes were already read into a buffer.
type buffered struct {
	net.Conn
	first *bytes.Reader
}

func (b *buffered) Read(p []byte) (int, error) {
	if b.first.Len() > 0 {
		return b.first.Read(p)
	}
	return b.Conn.Read(p)
}

// serve answers the requests on a connection until it ends.
func serve(conn net.Conn, h http.Handler) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	w := &watched{Conn: conn, closed: make(chan struct{})}
	s := &http.Server{
		Handler: h, Protocols: &protocols, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: dialPatience,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		HTTP2:    &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: answer, MaxConcurrentStreams: maxStreams},
	}
	_ = s.Serve(&once{conn: w})
	_ = s.Close()
}

// once is a listener for one connection. Its second Accept returns when the connection is closed.
type once struct {
	conn  *watched
	given bool
}

func (o *once) Accept() (net.Conn, error) {
	if !o.given {
		o.given = true
		return o.conn, nil
	}
	<-o.conn.closed
	return nil, net.ErrClosed
}
func (o *once) Close() error   { return nil }
func (o *once) Addr() net.Addr { return o.conn.LocalAddr() }

// handler forwards the hub's requests to the cluster's API with the agent's credentials in place of the hub's.
func (a *Agent) handler() http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = a.Target.Scheme, a.Target.Host
			r.Out.URL.Path = strings.TrimSuffix(a.Target.Path, "/") + r.In.URL.Path
			r.Out.URL.RawPath, r.Out.Host = "", ""
			for name := range r.Out.Header {
				if name == "Authorization" || name == "Cookie" || strings.HasPrefix(name, "Impersonate-") ||
					strings.HasPrefix(name, "X-Remote-") {
					r.Out.Header.Del(name)
				}
			}
		},
		Transport: a.Transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				a.Log.Warn("the API of the cluster does not answer", "error", err)
			}
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprintf(w, "the cluster's API does not answer its agent: %v", err)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; p != "/version" && p != "/api" && p != "/apis" && !strings.HasPrefix(p, "/api/") &&
			!strings.HasPrefix(p, "/apis/") || strings.Contains(p, "/../") || strings.Contains(p, "//") {
			http.Error(w, "the agent forwards only requests for objects", http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}
