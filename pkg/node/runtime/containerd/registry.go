package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Limits of how long a registry can delay a pull, and of how much it can make the pull read.
const (
	fetchesAtOnce = 3                // concurrent blobs per pull
	maxAnswer     = 4 << 20          // bytes of a response other than a blob
	maxHeader     = 256 << 10        // bytes of a response's headers
	silence       = 60 * time.Second // maximum time without receiving a byte
	reachTime     = 15 * time.Second // maximum time to resolve a registry's name and connect to it
	crawlWindow   = 5 * time.Minute  // at least crawlBytes must be received in it
	crawlBytes    = 256 << 10
	maxRedirects  = 5
)

type patience struct {
	silence, window, dial time.Duration
	bytes                 int64 // minimum per window
}

var usual = patience{silence, crawlWindow, reachTime, crawlBytes}

// registryClient returns the HTTP client for registries. It does not send credentials to other hosts on a redirect:
// URLs of blob storage contain what they need.
func registryClient(p patience) *http.Client {
	t := docker.DefaultHTTPTransport(nil)
	t.DialContext = dialRegistry(p.dial)
	t.MaxResponseHeaderBytes = maxHeader
	t.ResponseHeaderTimeout = min(t.ResponseHeaderTimeout, p.silence)
	return &http.Client{
		Transport: boundedTransport{t, p.silence}, CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects {
				return fmt.Errorf("stopped after %d redirects", maxRedirects)
			}
			if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
				return fmt.Errorf("redirected from https to %s", req.URL.Scheme)
			}
			if req.URL.Host != via[0].URL.Host {
				req.Header.Del("Authorization")
			} else if got := via[0].Header.Get("Authorization"); got != "" {
				req.Header.Set("Authorization", got)
			}
			return nil
		},
	}
}

// tokenClient returns the HTTP client for token servers. Its requests contain credentials, so it does not follow
// redirects to other hosts.
func tokenClient(p patience) *http.Client {
	c := registryClient(p)
	c.Timeout = p.silence
	c.Transport = plainContext{c.Transport}
	c.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
			return fmt.Errorf("the token server %s redirects to %s", via[0].URL.Host, req.URL.Host)
		}
		return nil
	}
	return c
}

// plainContext removes blobKey from the context, so that token responses are limited like other metadata.
type plainContext struct{ http.RoundTripper }

func (t plainContext) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(req.WithContext(context.WithValue(req.Context(), blobKey{}, nil)))
}

// boundedTransport limits the time between bytes of a response, and its size unless it is a blob.
type boundedTransport struct {
	http.RoundTripper
	silence time.Duration
}

// blobKey marks requests for blobs. Their size is limited by their descriptor.
type blobKey struct{}

func (t boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	res, err := t.RoundTripper.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	res.Request = req
	body := &movingBody{ReadCloser: res.Body, cancel: cancel, silence: t.silence, left: -1}
	if ctx.Value(blobKey{}) == nil {
		body.left = maxAnswer
	}
	res.Body = body
	return res, nil
}

// movingBody is a response body that fails if no data arrives for too long.
type movingBody struct {
	io.ReadCloser
	cancel  context.CancelFunc
	silence time.Duration
	left    int64 // bytes; negative means no limit
}

func (b *movingBody) Read(p []byte) (int, error) {
	if b.left >= 0 {
		p = p[:min(int64(len(p)), b.left+1)]
	}
	timer := time.AfterFunc(b.silence, b.cancel)
	n, err := b.ReadCloser.Read(p)
	if !timer.Stop() && n == 0 && err != nil && err != io.EOF {
		return 0, refuse("the registry sent nothing for %s", b.silence)
	}
	if b.left >= 0 {
		if b.left -= int64(n); b.left < 0 {
			b.left = 0
			return 0, refuse("the registry answers with more than %d bytes where no blob was asked for", int64(maxAnswer))
		}
	}
	return n, err
}

func (b *movingBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

func resolver(a runtime.Auth, p patience) remotes.Resolver {
	client := registryClient(p)
	hosts := func(namespace string) ([]docker.RegistryHost, error) {
		list, err := docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost),
			docker.WithClient(client))(namespace)
		for i := range list {
			list[i].Authorizer = newAuthorizer(a, list[i].Scheme, list[i].Host, p)
		}
		return list, err
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: hosts})
}

// authorizer answers authentication challenges of its registry, but not of hosts to which the registry redirects.
type authorizer struct {
	docker.Authorizer
	scheme, host string
}

func newAuthorizer(a runtime.Auth, scheme, host string, p patience) docker.Authorizer {
	credentials := func(asking string) (string, string, error) {
		switch {
		case asking != host:
			return "", "", nil
		case a.Token != "":
			return "", a.Token, nil // without a user name, containerd treats the password as a token
		}
		return a.Username, a.Password, nil
	}
	return authorizer{
		docker.NewDockerAuthorizer(docker.WithAuthClient(tokenClient(p)), docker.WithAuthCreds(credentials)), scheme, host,
	}
}

func (a authorizer) Authorize(ctx context.Context, req *http.Request) error {
	if req.URL.Host != a.host {
		return nil
	}
	return a.Authorizer.Authorize(ctx, req)
}

func (a authorizer) AddResponses(ctx context.Context, responses []*http.Response) error {
	last := responses[len(responses)-1]
	if last.Request.URL.Host != a.host {
		return fmt.Errorf("%s, to which registry %s redirects, asks for credentials: %w", last.Request.URL.Host, a.host,
			docker.ErrInvalidAuthorization)
	}
	for _, c := range auth.ParseAuthHeader(last.Header) {
		if c.Scheme != auth.BearerAuth {
			continue
		}
		realm, err := url.Parse(c.Parameters["realm"])
		if err != nil || !a.trusts(realm) {
			return fmt.Errorf("registry %s requests tokens from %.200q, which is refused: the token server must be an https "+
				"URL: %w", a.host, c.Parameters["realm"], docker.ErrInvalidAuthorization)
		}
	}
	return a.Authorizer.AddResponses(ctx, responses)
}

// trusts reports whether credentials may be sent to a token server: over HTTP only if both it and the registry are
// local and the registry is used over HTTP.
func (a authorizer) trusts(realm *url.URL) bool {
	if realm.User != nil || realm.Host == "" {
		return false
	}
	if realm.Scheme == "https" {
		return true
	}
	local, err := docker.MatchLocalhost(realm.Host)
	return err == nil && local && realm.Scheme == "http" && a.scheme == "http"
}

// fetching reports a pull's progress and limits its concurrent fetches.
type fetching struct {
	remotes.Resolver
	progress func(runtime.Progress) // may be nil
	slots    chan struct{}
	patience patience

	mu    sync.Mutex
	total runtime.Progress
}

func newFetching(r remotes.Resolver, p patience, progress func(runtime.Progress)) *fetching {
	return &fetching{Resolver: r, progress: progress, slots: make(chan struct{}, fetchesAtOnce), patience: p}
}

func (f *fetching) count(done, total int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.Done += done
	f.total.Total += total
	if done > 0 && f.progress != nil {
		f.progress(f.total)
	}
}

func (f *fetching) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	from, err := f.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
		d.URLs = nil // an image must not make this machine request arbitrary URLs
		select {
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		body, err := from.Fetch(context.WithValue(ctx, blobKey{}, true), d)
		if err != nil {
			<-f.slots
			return nil, err
		}
		f.count(0, d.Size)
		return &fetched{ReadCloser: body, f: f, began: time.Now()}, nil
	}), nil
}

// fetched is a blob that is being fetched, over several connections if necessary.
type fetched struct {
	io.ReadCloser
	f     *fetching
	once  sync.Once
	began time.Time // start of the current window
	got   int64     // bytes received in the window
}

func (r *fetched) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.f.count(int64(n), 0)
	}
	r.got += int64(n)
	if p := r.f.patience; err == nil && time.Since(r.began) > p.window {
		if r.got < p.bytes {
			return 0, refuse("the registry sent %d bytes in %s", r.got, p.window)
		}
		r.began, r.got = time.Now(), 0
	}
	return n, err
}

// Seek allows containerd to resume an interrupted fetch.
func (r *fetched) Seek(offset int64, whence int) (int64, error) {
	s, ok := r.ReadCloser.(io.Seeker)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return s.Seek(offset, whence)
}

func (r *fetched) Close() error {
	err := r.ReadCloser.Close()
	r.once.Do(func() { <-r.f.slots })
	return err
}

// unreachableError is the failure to find a registry's address or to connect to it. It is not a net.Error: containerd
// would repeat a pull up to five times after a timeout.
type unreachableError struct{ error }

func (e unreachableError) Error() string { return "the registry cannot be reached: " + e.error.Error() }
func (e unreachableError) Unwrap() error { return e.error }

// Is reports that it is runtime.ErrRefused, since other credentials would not help.
func (e unreachableError) Is(target error) bool { return target == runtime.ErrRefused }

func dialRegistry(limit time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: limit}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, unreachableError{err}
		}
		return c, nil
	}
}
