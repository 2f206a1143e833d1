// Package aggregation connects to the servers of APIServices: it forwards requests with the user's identity, and
// reads the servers' discovery and OpenAPI documents. Its invariant: the API server reads a response to its own
// requests within limits of size and time.
package aggregation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// maxDiscovery limits discovery documents and the list of OpenAPI documents, in bytes.
	maxDiscovery = 4 << 20
	// maxResources limits the resources of a group and version. Others are ignored.
	maxResources = 4096
	// probeTimeout limits each of the API server's own requests, as upstream.
	probeTimeout = 5 * time.Second
)

// Config configures a Backend.
type Config struct {
	GroupVersion schema.GroupVersion
	// CABundle verifies the server's certificate for ServerName, unless Insecure is set. If it is empty, the
	// system's CAs verify it.
	CABundle   []byte
	Insecure   bool
	ServerName string
	// Certificate returns the client certificate that makes the server trust the user headers.
	Certificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// Resolve returns the base URL of one of the server's endpoints. It is called for each request.
	Resolve func() (*url.URL, error)
	// Fail responds to a request that could not be forwarded.
	Fail func(http.ResponseWriter, *http.Request, error)
}

// Backend is a client of the server of one group and version.
type Backend struct {
	cfg       Config
	transport *http.Transport

	mu      sync.Mutex
	swagger *Swagger // from the last response
	etag    string   // of the document that swagger is part of
}

// New creates a Backend. Close releases its connections.
func New(cfg Config) (*Backend, error) {
	t := &tls.Config{
		ServerName:           cfg.ServerName,
		GetClientCertificate: cfg.Certificate,
		InsecureSkipVerify:   cfg.Insecure,
		MinVersion:           tls.VersionTLS12,
	} //nolint:gosec // the APIService says so
	if len(cfg.CABundle) > 0 {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(cfg.CABundle) {
			return nil, errors.New("unable to load root certificates: caBundle has no certificate")
		}
	}
	return &Backend{cfg: cfg, transport: &http.Transport{
		TLSClientConfig: t, ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConnsPerHost: 25,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		MaxResponseHeaderBytes: 64 << 10,
	}}, nil
}

// Close closes idle connections. Requests in flight continue.
func (b *Backend) Close() { b.transport.CloseIdleConnections() }

// ServeHTTP forwards a request with its user's identity, but without the user's credentials.
func (b *Backend) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	who, ok := request.UserFrom(req.Context())
	if !ok {
		b.cfg.Fail(w, req, errors.New("missing user"))
		return
	}
	location, err := b.cfg.Resolve()
	if err != nil {
		b.cfg.Fail(w, req, err)
		return
	}
	location = &url.URL{Scheme: "https", Host: location.Host, Path: req.URL.Path, RawQuery: req.URL.Query().Encode()}
	forwarded, cancel := apiproxy.NewRequestForProxy(location, req)
	defer cancel()
	for name := range forwarded.Header { // only this server may assert the user
		if len(name) >= 9 && name[:9] == "X-Remote-" {
			forwarded.Header.Del(name)
		}
	}
	forwarded.Header.Del("Authorization")
	var through http.RoundTripper = b.transport
	upgrade := httpstream.IsUpgradeRequest(req)
	if upgrade { // upgrades bypass the round tripper
		transport.SetAuthProxyHeaders(forwarded, who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra())
	} else {
		through = transport.NewAuthProxyRoundTripper(who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra(), through)
	}
	h := proxy.NewUpgradeAwareHandler(location, through, true, upgrade, responder(b.cfg.Fail))
	h.RejectForwardingRedirects = true
	h.ServeHTTP(w, forwarded)
}

type responder func(http.ResponseWriter, *http.Request, error)

func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) { r(w, req, err) }

// Description is the result of Describe.
type Description struct {
	Resources []metav1.APIResource
	// OpenAPI is the path and query of the OpenAPI 3 document. Empty if there is none.
	OpenAPI string
	// Swagger is the group and version's part of the OpenAPI 2 document. Nil if there is none.
	Swagger *Swagger
}

// Describe reads the server's resources and OpenAPI documents. It is also the probe of the server's availability: an
// error means that the resources could not be read.
func (b *Backend) Describe(ctx context.Context) (Description, error) {
	path := "/apis/" + b.cfg.GroupVersion.String()
	var list metav1.APIResourceList
	if err := b.get(ctx, path, &list); err != nil {
		return Description{}, err
	}
	d := Description{Resources: list.APIResources[:min(len(list.APIResources), maxResources)]}
	var docs struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := b.get(ctx, "/openapi/v3", &docs); err == nil {
		own := "/openapi/v3" + path
		if u, err := url.Parse(docs.Paths[path[1:]].ServerRelativeURL); err == nil && u.Path == own &&
			len(u.RawQuery) < 1024 {
			d.OpenAPI = u.RequestURI()
		}
	}
	d.Swagger = b.readSwagger(ctx)
	return d, nil
}

// readSwagger returns the group and version's part of the server's OpenAPI 2 document. It reads the document again
// only if its ETag changed.
func (b *Backend) readSwagger(ctx context.Context) *Swagger {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, etag, err := b.fetch(ctx, "/openapi/v2", b.etag)
	switch {
	case err != nil:
		b.swagger, b.etag = nil, ""
	case data != nil:
		b.etag = etag
		if b.swagger, err = PartOf(data, b.cfg.GroupVersion); err != nil {
			b.swagger = nil
		}
	}
	return b.swagger
}

// get reads a JSON document from the server.
func (b *Backend) get(ctx context.Context, path string, into any) error {
	data, _, err := b.fetch(ctx, path, "")
	if err != nil {
		return err
	}
	if err := decode(data, into); err != nil {
		return fmt.Errorf("failing or missing response from %s: %w", path, err)
	}
	return nil
}

// decode decodes JSON that takes a bounded amount of memory.
func decode(data []byte, into any) error {
	if err := payload.Check(data, into); err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// fetch reads a document from the server and returns it with its ETag. The document is nil if its ETag is still
// known.
func (b *Backend) fetch(ctx context.Context, path, known string) ([]byte, string, error) {
	base, err := b.cfg.Resolve()
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	u := url.URL{Scheme: "https", Host: base.Host, Path: path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, "", err
	}
	if known != "" {
		req.Header.Set("If-None-Match", known)
	}
	req.Header.Set("Accept", "application/json")
	transport.SetAuthProxyHeaders(req, "system:kube-aggregator", "", []string{"system:masters"}, nil)
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		b.transport.CloseIdleConnections()
		return nil, "", fmt.Errorf("failing or missing response from %v: %w", &u, err)
	}
	defer resp.Body.Close()
	if known != "" && resp.StatusCode == http.StatusNotModified {
		return nil, known, nil
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return nil, "", fmt.Errorf("failing or missing response from %v: bad status from %v: %d", &u, &u, resp.StatusCode)
	}
	data, err := bounded.All(resp.Body, maxDiscovery)
	if err != nil {
		return nil, "", fmt.Errorf("failing or missing response from %v: %w", &u, err)
	}
	return data, resp.Header.Get("ETag"), nil
}

const (
	// maxCollected limits a response to the API server's own client and each event of a watch, in bytes, and
	// maxCollectedValues the values in it. A value takes up to 140 bytes once decoded.
	maxCollected, maxCollectedValues = 32 << 20, 2_000_000
	// collectTimeout limits requests of that client, and collectWatch its watches, which servers end after minutes
	// anyway.
	collectTimeout = 30 * time.Second
	collectWatch   = time.Hour
)

// RoundTrip sends a request of the API server's own client as a given user. It uses only the path and query of the
// URL. A redirect is an error: the client would follow it with this identity to any address, including another
// group's server.
func (b *Backend) RoundTrip(req *http.Request, as user.Info) (*http.Response, error) {
	base, err := b.cfg.Resolve()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	watch, timeout := req.URL.Query().Get("watch") != "", collectTimeout
	if watch {
		timeout = collectWatch
	}
	ctx, cancel := context.WithTimeout(req.Context(), timeout)
	out := req.Clone(ctx)
	out.Host, out.URL.Scheme, out.URL.Host = "", "https", base.Host
	bounded.AcceptJSON(out.Header)
	transport.SetAuthProxyHeaders(out, as.GetName(), as.GetUID(), as.GetGroups(), as.GetExtra())
	resp, err := b.transport.RoundTrip(out)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if where := resp.Header.Get("Location"); resp.StatusCode >= 300 && resp.StatusCode < 400 &&
		resp.StatusCode != http.StatusNotModified {
		_ = resp.Body.Close()
		cancel()
		return nil, fmt.Errorf("%w: it answers %d and names %.200q, which is not followed", ErrUnavailable, resp.StatusCode,
			where)
	}
	if err := bounded.JSONAnswer(resp, maxCollected, maxCollectedValues, watch); err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	resp.Body = &body{resp.Body, cancel}
	return resp, nil
}

// body ends the request on Close.
type body struct {
	io.ReadCloser
	cancel func()
}

func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
