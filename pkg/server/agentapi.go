package server

import (
	"net/http"
	"net/url"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	requests "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/base/memhttp"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

// localAPI calls the API server in the same process, without a socket.
type localAPI struct {
	handler func() http.Handler
	node    user.Info
}

// remoteAPI sends a joined machine's requests to the servers. Requests with a token use connections without the
// machine's client certificate, because the API server would prefer the certificate to the token.
type remoteAPI struct {
	identity *identity

	mu    sync.Mutex
	of    *joined // identity whose transport plain was cloned from
	plain *http.Transport
}

var _, _ part.API = (*localAPI)(nil), (*remoteAPI)(nil)

// maxResponse is the maximum size of a response that localAPI reads, in bytes.
const maxResponse = 4 << 20

func (l *localAPI) Do(req *http.Request, token string) (*http.Response, error) {
	ctx := req.Context()
	if token == "" {
		ctx = requests.WithUser(ctx, l.node)
	}
	in := req.Clone(ctx)
	in.RequestURI, in.RemoteAddr, in.Host = req.URL.RequestURI(), "127.0.0.1:0", "kubernetes.default.svc"
	if token != "" {
		in.Header.Set("Authorization", "Bearer "+token)
	}
	return memhttp.Call(l.handler(), in, maxResponse)
}

func (r *remoteAPI) Do(req *http.Request, token string) (*http.Response, error) {
	req.URL = &url.URL{
		Scheme:   "https",
		Host:     r.identity.servers.Current(),
		Path:     req.URL.Path,
		RawPath:  req.URL.RawPath,
		RawQuery: req.URL.RawQuery,
	}
	if token == "" {
		return r.identity.RoundTrip(req)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return r.identity.servers.RoundTrip(r.transport(), req)
}

func (r *remoteAPI) transport() *http.Transport {
	present := r.identity.present.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of != present {
		if r.plain != nil {
			r.plain.CloseIdleConnections()
		}
		r.of, r.plain = present, present.transport.Clone()
		r.plain.TLSClientConfig.Certificates = nil
	}
	return r.plain
}
