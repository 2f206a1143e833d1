package server

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDeletionEndsWhatIsOpen checks that deleting a Node ends its watches, and ends its agent with an error.
func TestDeletionEndsWhatIsOpen(t *testing.T) {
	c := newCluster(t)
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _ := strings.CutPrefix(r.TLS.PeerCertificates[0].Subject.CommonName, nodeUser(""))
		if c.members.check(name, c.nodes[name], r.TLS.PeerCertificates[0]) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	server := c.serve(t, c.members.handler(c.handler(api)))
	member := func(name string) *identity {
		i := c.machine(t, server.URL, t.TempDir(), name)
		require.NoError(t, i.join(t.Context()))
		c.register(t, i)
		return i
	}
	gone, stays := member("n1"), member("n2")
	ended, stopped := make(chan error, 1), false
	gone.excluded = func(context.Context) { stopped = true }
	go func() { ended <- gone.Run(t.Context()) }()
	watch := func(i *identity) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		require.NoError(t, err)
		answer, err := (&http.Client{Transport: i}).Do(request)
		require.NoError(t, err)
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
	left, kept := watch(gone), watch(stays)
	require.Equal(t, http.StatusOK, left.StatusCode)
	c.remove("n1")
	_, _ = io.ReadAll(left.Body) // the watch ends
	require.Equal(t, http.StatusUnauthorized, watch(gone).StatusCode)
	require.ErrorContains(t, <-ended, "the node n1 was deleted from the cluster")
	require.True(t, stopped, "its pods run elsewhere now")
	c.members.mu.Lock()
	require.Len(t, c.members.requests, 1)
	c.members.mu.Unlock()

	// If another machine takes the name over, the first machine's connections end as well.
	c.register(t, c.machine(t, server.URL, t.TempDir(), "n2"))
	_, _ = io.ReadAll(kept.Body)
	for _, i := range []*identity{gone, stays} {
		i.present.Load().transport.CloseIdleConnections()
	}
}

// pipes is an in-memory listener, for use with a fake clock.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.done); return nil }

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// mute is a connection that loses all writes once silent is set.
type mute struct {
	net.Conn
	silent *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (m *mute) Write(b []byte) (int, error) {
	if m.silent.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

func (m *mute) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.silent.Load() {
		<-m.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (m *mute) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

// TestDeadConnectionIsLeft checks that a connection to a vanished peer is closed in time to renew the node's lease
// over another one.
func TestDeadConnectionIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		listener := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{TLSConfig: c.tls(t), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
			Handler: c.handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
		served := make(chan error, 1)
		go func() { served <- server.ServeTLS(listener, "", "") }()
		i := c.machine(t, "https://127.0.0.1:6443", t.TempDir(), "n1")
		var silent *atomic.Bool
		i.servers.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := listener.dial(ctx, network, address)
			silent = &atomic.Bool{}
			return &mute{Conn: conn, silent: silent, closed: make(chan struct{})}, err
		}
		require.NoError(t, i.join(t.Context()))
		get := func() error {
			answer, err := (&http.Client{Transport: i}).Get("https://127.0.0.1:6443/")
			if err == nil {
				err = answer.Body.Close()
			}
			return err
		}
		require.NoError(t, get())
		silent.Store(true)
		began := time.Now()
		require.Error(t, get())
		require.LessOrEqual(t, time.Since(began), silence+silence/2)
		require.NoError(t, get())

		i.present.Load().transport.CloseIdleConnections()
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}

// TestCertificatesAreRenewed checks that a running agent renews its certificates in time and keeps a watch open.
func TestCertificatesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.life = 3 * time.Hour // Certificates begin an hour ago, to allow for slow clocks: 4 h in all.
		var down, deny atomic.Bool
		var joins, connections atomic.Int32
		events := make(chan string)
		api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// The API server checks each request, also on an old connection.
			if deny.Load() || time.Now().After(r.TLS.PeerCertificates[0].NotAfter) {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if r.URL.Path != "/watch" {
				_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].SerialNumber.String())
				return
			}
			for {
				select {
				case e := <-events:
					_, _ = io.WriteString(w, e+"\n")
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		})
		handler := c.handler(api)
		listener := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{TLSConfig: c.tls(t), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
			ConnState: func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					connections.Add(1)
				}
			},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == joinPath || r.URL.Path == renewPath {
					joins.Add(1)
					if down.Load() {
						http.Error(w, "down", http.StatusServiceUnavailable)
						return
					}
				}
				handler.ServeHTTP(w, r)
			})}
		served := make(chan error, 1)
		go func() { served <- server.ServeTLS(listener, "", "") }()

		i := c.machine(t, "https://127.0.0.1:6443", t.TempDir(), "n1")
		i.servers.Dial = listener.dial
		require.NoError(t, i.join(t.Context()))
		c.register(t, i)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- i.Run(ctx) }()
		<-i.Ready()
		began := time.Now()

		who := func() string {
			t.Helper()
			answer, err := (&http.Client{Transport: i}).Get("https://127.0.0.1:6443/who")
			require.NoError(t, err)
			defer answer.Body.Close()
			require.Equal(t, http.StatusOK, answer.StatusCode)
			body, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			return string(body)
		}
		serving := func() string {
			cert, err := i.serving(nil)
			require.NoError(t, err)
			require.True(t, time.Now().Before(cert.Leaf.NotAfter))
			return cert.Leaf.SerialNumber.String()
		}
		watching, stop := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(watching, http.MethodGet, "https://127.0.0.1:6443/watch", nil)
		require.NoError(t, err)
		go func() { events <- "one" }()
		watch, err := (&http.Client{Transport: i}).Do(request)
		require.NoError(t, err)
		require.Equal(t, 2, watch.ProtoMajor)
		lines := bufio.NewScanner(watch.Body)
		require.True(t, lines.Scan())

		firstWho, firstServing := who(), serving()
		require.Equal(t, firstWho, who())
		time.Sleep(time.Hour)
		require.Equal(t, firstWho, who(), "too early to renew")
		require.EqualValues(t, 1, joins.Load())

		time.Sleep(time.Hour) // two thirds of the lifetime
		require.EqualValues(t, 2, joins.Load())
		require.NotEqual(t, firstWho, who())
		require.NotEqual(t, firstServing, serving())
		before := connections.Load()
		secondWho := who()
		require.Equal(t, before, connections.Load(), "one connection for each certificate, not for each request")

		// The server is down when the next renewal is due. The agent retries, with its old certificate until that
		// expires.
		down.Store(true)
		time.Sleep(time.Until(began.Add(4*time.Hour - time.Minute)))
		require.Greater(t, joins.Load(), int32(3))
		require.Equal(t, secondWho, who())
		require.Less(t, joins.Load(), int32(40), "with a pause in between")
		// The machine can renew an expired certificate.
		time.Sleep(2 * time.Hour)
		down.Store(false)
		time.Sleep(renewalRetry)
		require.NotEqual(t, secondWho, who())
		serving()

		// A machine whose certificate is refused renews at once, but not on every request.
		time.Sleep(renewalRetry)
		last := joins.Load()
		deny.Store(true)
		for range 10 {
			answer, err := (&http.Client{Transport: i}).Get("https://127.0.0.1:6443/who")
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			synctest.Wait()
			require.Equal(t, last+1, joins.Load())
		}
		deny.Store(false)
		time.Sleep(renewalRetry + time.Second)
		require.LessOrEqual(t, joins.Load(), last+2)
		who()

		// The watch, which began with a certificate that has expired, continues.
		go func() { events <- "two" }()
		require.True(t, lines.Scan())
		require.Equal(t, "two", lines.Text())

		stop()
		_ = watch.Body.Close()
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}
