// Package pull connects clusters that the hub cannot reach. An agent in the cluster opens one connection to the hub and
// serves HTTP/2 on it; the hub is the client.
//
// Its invariants: a connection serves only the cluster that its token names; the hub gets exactly the rights of the
// agent's kubeconfig; a new connection of a cluster replaces the old one; and requests for a cluster without a
// connection fail at once.
package pull

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// Protocol is the value of the Upgrade header.
	Protocol = "coracle-kontrol-tunnel-v1"
	// MaxTunnels limits the connected clusters.
	MaxTunnels = 1000

	// After silence without data, each side sends a ping. Without a reply within answer it closes the connection.
	silence = 15 * time.Second
	answer  = 10 * time.Second
	// maxStreams limits the concurrent requests, including watches, of a connection.
	maxStreams = 1000
	maxHeader  = 64 << 10 // bytes
	// leastLife is how long a connection lives at least, at most twice as long. Then the agent connects again, so that
	// a token that was revoked ends its connection. API servers end watches likewise.
	leastLife = 30 * time.Minute
)

// NotConnectedError means that no agent of a cluster is connected. It is a net.Error.
type NotConnectedError struct{ Cluster string }

func (e *NotConnectedError) Error() string {
	return fmt.Sprintf("no agent of cluster %s is connected: run `coracle agent kontrol` there", e.Cluster)
}

// Timeout and Temporary make it a net.Error, which target.Lost recognizes.
func (*NotConnectedError) Timeout() bool   { return false }
func (*NotConnectedError) Temporary() bool { return true }

var _ net.Error = (*NotConnectedError)(nil)

// ErrElsewhere means that this server does not run Kontrol's reconcilers, so a connection to it would be useless.
var ErrElsewhere = errors.New("Kontrol runs on another server of this cluster, or not at all: give the agent the " +
	"addresses of all servers, with several --hub") //nolint:staticcheck // Kontrol is a name

// ErrFull means that MaxTunnels clusters are connected.
var ErrFull = fmt.Errorf("%d clusters are connected, the maximum", MaxTunnels)

// Hub holds the connections of agents. It is safe for concurrent use.
type Hub struct {
	mu      sync.Mutex
	tunnels map[string]*tunnel
	changed func(cluster string) // nil until Use
	life    time.Duration        // of a connection, at least
}

// NewHub returns a hub that accepts no connections until Use is called.
func NewHub() *Hub { return &Hub{tunnels: map[string]*tunnel{}, life: leastLife} }

// Use accepts connections until ctx ends. It calls changed, without locks, when a cluster connects or disconnects.
func (h *Hub) Use(ctx context.Context, changed func(cluster string)) {
	h.mu.Lock()
	h.changed = changed
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	h.changed = nil
	all := h.tunnels
	h.tunnels = map[string]*tunnel{}
	h.mu.Unlock()
	for _, t := range all {
		t.close()
	}
}

// Ready returns the error that Serve would return at once for a connection of a cluster, or nil.
func (h *Hub) Ready(cluster string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		return ErrElsewhere
	}
	if h.tunnels[cluster] == nil && len(h.tunnels) >= MaxTunnels {
		return ErrFull
	}
	return nil
}

// Serve uses a connection for the requests to a cluster until it ends, is replaced, reaches its age (see leastLife), or
// ctx ends. It closes the connection.
func (h *Hub) Serve(ctx context.Context, cluster string, conn net.Conn) error {
	t := newTunnel(conn)
	defer t.close()
	h.mu.Lock()
	changed, old := h.changed, h.tunnels[cluster]
	switch {
	case changed == nil:
		h.mu.Unlock()
		return ErrElsewhere
	case old == nil && len(h.tunnels) >= MaxTunnels:
		h.mu.Unlock()
		return ErrFull
	}
	h.tunnels[cluster] = t
	h.mu.Unlock()
	if old != nil {
		old.close()
	}
	changed(cluster)
	age := time.NewTimer(h.life + rand.N(h.life))
	defer age.Stop()
	select {
	case <-ctx.Done():
	case <-t.conn.closed:
	case <-age.C:
	}
	h.mu.Lock()
	if h.tunnels[cluster] == t {
		delete(h.tunnels, cluster)
	}
	changed = h.changed
	h.mu.Unlock()
	t.close()
	if changed != nil {
		changed(cluster)
	}
	return ctx.Err()
}

// Transport returns a transport that sends each request through the cluster's current connection.
func (h *Hub) Transport(cluster string) http.RoundTripper { return transport{h, cluster} }

type transport struct {
	hub     *Hub
	cluster string
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.hub.mu.Lock()
	via := t.hub.tunnels[t.cluster]
	t.hub.mu.Unlock()
	if via == nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, &NotConnectedError{t.cluster}
	}
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host = "http", host
	res, err := via.transport.RoundTrip(out)
	if err != nil && via.conn.isClosed() {
		return nil, &NotConnectedError{t.cluster}
	}
	return res, err
}

// host is the host name in the URLs of requests to an agent; it is not resolved.
const host = "agent"

type tunnel struct {
	conn      *watched
	transport *http.Transport
}

func newTunnel(conn net.Conn) *tunnel {
	t := &tunnel{conn: &watched{Conn: conn, closed: make(chan struct{})}}
	var once sync.Once
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // the connection itself is encrypted
	t.transport = &http.Transport{
		DialContext: func(context.Context, string, string) (c net.Conn, err error) {
			err = net.ErrClosed
			once.Do(func() { c, err = t.conn, nil })
			return c, err
		},
		Protocols: &protocols, MaxResponseHeaderBytes: maxHeader, MaxConnsPerHost: 1, DisableCompression: true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:             silence,
			PingTimeout:                 answer,
			MaxConcurrentStreams:        maxStreams,
			StrictMaxConcurrentRequests: true,
		},
	}
	return t
}

func (t *tunnel) close() {
	_ = t.conn.Close()
	t.transport.CloseIdleConnections()
}

type watched struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (w *watched) Close() error {
	err := w.Conn.Close()
	w.once.Do(func() { close(w.closed) })
	return err
}

func (w *watched) isClosed() bool {
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}
