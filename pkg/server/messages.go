package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	requests "k8s.io/apiserver/pkg/endpoints/request"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/api"
	"github.com/coracle-dev/coracle/pkg/systems/workers/messages"
)

// localAPI is how the agent in the server's own process sends messages: without a socket.
type localAPI struct {
	handler func() http.Handler
	node    user.Info
}

// remoteAPI is how the agent of a joined machine sends messages. Requests with a token go over connections without the machine's
// certificate, which would count instead of it.
type remoteAPI struct {
	identity *identity

	mu    sync.Mutex
	of    *joined // the identity from which plain was made
	plain *http.Transport
}

var _, _ messages.API = (*localAPI)(nil), (*remoteAPI)(nil)

// mostReply limits a response, in bytes: a reply, the outcomes of a batch, or an error.
const mostReply = workers.MaxBatchOutcomes

// newSeal returns system.Host's Seal. Its key is derived from that of service accounts. A process uses the same one until it
// ends: what was sealed before the key of service accounts changed is not recognized by a server that has started since.
func newSeal(of *ecdsa.PrivateKey) (func(data []byte) []byte, error) {
	secret, err := of.Bytes()
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "coracle message receipts", sha256.Size)
	if err != nil {
		return nil, err
	}
	return func(data []byte) []byte {
		m := hmac.New(sha256.New, key)
		_, _ = m.Write(data)
		return m.Sum(nil)
	}, nil
}

// localNode returns the agent in this process, or nil if it is not that of the node.
func (p *process) localNode(name string) http.RoundTripper {
	if p.node == nil || name != p.NodeName {
		return nil
	}
	if h := p.node.agent.LocalMessages(); h != nil {
		return localNode{h}
	}
	return nil
}

type localNode struct{ *api.LocalMessages }

// RoundTrip implements http.RoundTripper.
func (l localNode) RoundTrip(req *http.Request) (*http.Response, error) {
	return call(l.LocalMessages, req)
}

// Do implements messages.API.
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
	return call(l.handler(), in)
}

// call has a handler of this process serve a request.
func call(h http.Handler, req *http.Request) (res *http.Response, err error) {
	w := &recorded{header: http.Header{}}
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler { //nolint:errorlint // net/http compares it by identity too
				panic(p)
			}
			res, err = nil, errors.New("the handler ended the request")
		}
	}()
	h.ServeHTTP(w, req)
	if err := req.Context().Err(); err != nil && w.code == 0 {
		return nil, err
	}
	if w.large {
		return nil, errors.New("the response is too large")
	}
	return &http.Response{StatusCode: w.status(), Status: http.StatusText(w.status()), Header: w.header, Body: io.NopCloser(&w.body), Request: req,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}, nil
}

// recorded is a response in memory.
type recorded struct {
	header http.Header
	code   int
	body   bytes.Buffer
	large  bool
}

func (r *recorded) Header() http.Header { return r.header }

func (r *recorded) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code = code
	}
}

func (r *recorded) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Len()+len(b) > mostReply {
		r.large = true
		return 0, errors.New("too large")
	}
	return r.body.Write(b)
}

func (r *recorded) status() int {
	if r.code == 0 {
		return http.StatusOK
	}
	return r.code
}

// Do implements messages.API.
func (r *remoteAPI) Do(req *http.Request, token string) (*http.Response, error) {
	req.URL = &url.URL{Scheme: "https", Host: r.identity.servers.Current(), Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}
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
