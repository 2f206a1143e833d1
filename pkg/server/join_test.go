package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/client/servers"
	"github.com/coracle-dev/coracle/pkg/jointoken"
	"github.com/coracle-dev/coracle/pkg/pki"
	"github.com/coracle-dev/coracle/pkg/run"
)

// testCluster is a server that machines can join, with Nodes set by the test.
type testCluster struct {
	keys  *pki.Set
	nodes map[string]*corev1.Node
	token jointoken.Token
	*joiner
}

func newCluster(t *testing.T) *testCluster {
	t.Helper()
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	token, err := jointoken.New(keys.Server.Bundle())
	require.NoError(t, err)
	c := &testCluster{keys: keys, nodes: map[string]*corev1.Node{}, token: token}
	c.joiner = &joiner{
		keys: keys, cluster: joinAnswer{ClusterDomain: "cluster.local"}, own: func() string { return "own" }, members: newMembers(nil, nil),
		token: func(_ context.Context, text string) error {
			if text != c.token.String() {
				return jointoken.ErrRefused
			}
			return nil
		},
		node: func(_ context.Context, name string) (*corev1.Node, error) { return c.nodes[name], nil },
	}
	return c
}

func (c *testCluster) tls(t *testing.T) *tls.Config {
	t.Helper()
	serving, err := c.keys.Server.NewSource(pki.Leaf{Name: "coracle", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	return &tls.Config{GetCertificate: serving.Server, ClientCAs: c.keys.Client.Pool(), ClientAuth: tls.RequestClientCert}
}

// serve serves a handler until the test ends.
func (c *testCluster) serve(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	config := c.tls(t)
	// httptest's own certificate would be used otherwise.
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config, nil }}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// machine returns a machine that joins c at url under a name.
func (c *testCluster) machine(t *testing.T, url, dir, name string) *identity {
	t.Helper()
	key, err := pki.LoadKey(filepath.Join(dir, "machine.key"))
	require.NoError(t, err)
	list, err := servers.New(servers.Config{Seeds: serverHosts([]string{url}), Client: name, Dial: (&net.Dialer{}).DialContext, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return &identity{
		servers: list, token: c.token.String(), nodeName: name, nodeIP: "192.0.2.7", dir: dir, key: key,
		log:     slog.New(slog.DiscardHandler),
		refused: make(chan struct{}, 1), changed: make(chan struct{}, 1), ready: make(chan struct{}),
	}
}

// register creates a machine's Node as its agent would.
func (c *testCluster) register(t *testing.T, i *identity) {
	t.Helper()
	machine, err := pki.Identity(i.key.Public())
	require.NoError(t, err)
	c.nodes[i.nodeName] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: i.nodeName, Annotations: map[string]string{machineAnnotation: machine}}}
	c.members.seen(c.nodes[i.nodeName])
}

// remove deletes the Node as a user would.
func (c *testCluster) remove(name string) {
	delete(c.nodes, name)
	c.members.end(name, func(*request) bool { return true })
}

// believes returns the API's check of a machine's certificate.
func (c *testCluster) believes(t *testing.T, i *identity) error {
	t.Helper()
	return c.members.check(i.nodeName, c.nodes[i.nodeName], certificate(t, i.present.Load().Client))
}

func certificate(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}

func TestJoin(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))

	i := c.machine(t, server.URL, t.TempDir(), "n1")
	require.NoError(t, i.join(t.Context()))
	j := i.present.Load()
	require.Equal(t, "cluster.local", j.ClusterDomain)
	cert := certificate(t, j.Client)
	require.Equal(t, "system:node:n1", cert.Subject.CommonName)
	require.Equal(t, []string{nodesGroup}, cert.Subject.Organization)
	_, err := cert.Verify(x509.VerifyOptions{Roots: c.keys.Client.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	_, err = j.serving.Leaf.Verify(x509.VerifyOptions{Roots: c.keys.Node.Pool(), DNSName: "n1"})
	require.NoError(t, err)
	_, err = j.serving.Leaf.Verify(x509.VerifyOptions{Roots: c.keys.Server.Pool(), DNSName: "n1"})
	require.Error(t, err, "no node can pass for the API")

	fails := func(want string, change func(*identity)) {
		t.Helper()
		other := c.machine(t, server.URL, t.TempDir(), "n2")
		change(other)
		require.ErrorContains(t, other.join(t.Context()), want)
	}
	fails("nodeName", func(i *identity) { i.nodeName = "N_1" })
	fails("nodeIP", func(i *identity) { i.nodeIP = "here" })
	wrong, err := jointoken.New(c.keys.Server.Bundle())
	require.NoError(t, err)
	fails("coracle token create", func(i *identity) { i.token = wrong.String() })
	fails("not a join token", func(i *identity) { i.token = "swordfish" })
	other, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	elsewhere, err := jointoken.New(other.Server.Bundle())
	require.NoError(t, err)
	fails("not the one that the token was made for", func(i *identity) { i.token = elsewhere.String() })
	server.Close()
	fails("no server answers", func(*identity) {})
}

// TestResume: a machine that has joined goes on when no server answers, as the node that it was, and no other machine does.
func TestResume(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	dir := t.TempDir()
	first := c.machine(t, server.URL, dir, "n1")
	require.NoError(t, first.join(t.Context()))
	server.Close()

	again := c.machine(t, server.URL, dir, "n1")
	again.token = ""
	require.NoError(t, again.enterOrResume(t.Context()))
	require.Equal(t, first.present.Load().joinAnswer, again.present.Load().joinAnswer)
	require.ErrorContains(t, c.machine(t, server.URL, dir, "n2").enterOrResume(t.Context()), "no server answers", "under another name")
	require.ErrorContains(t, c.machine(t, server.URL, t.TempDir(), "n1").enterOrResume(t.Context()), "no server answers", "it never joined")
	require.NoError(t, os.WriteFile(filepath.Join(dir, lastAnswer), []byte("{}"), 0o600))
	require.ErrorContains(t, again.enterOrResume(t.Context()), lastAnswer)
}

// TestNameIsBoundToAMachine checks that a name is bound while the Node exists, independently of the server's memory.
func TestNameIsBoundToAMachine(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	mineDir, otherDir := t.TempDir(), t.TempDir()
	join := func(dir, name string) (*identity, error) {
		i := c.machine(t, server.URL, dir, name)
		return i, i.join(t.Context())
	}

	first, err := join(mineDir, "n1")
	require.NoError(t, err)
	// Killed before it registers: nothing is bound yet, and its certificates are worthless once another machine has
	// registered.
	thief, err := join(otherDir, "n1")
	require.NoError(t, err)
	c.register(t, first)
	require.NoError(t, c.believes(t, first))
	require.ErrorContains(t, c.believes(t, thief), "coracle ctl delete node n1")

	_, err = join(mineDir, "n1")
	require.NoError(t, err, "the key on disk is what counts")
	_, err = join(otherDir, "n1")
	require.EqualError(t, err, "the node name n1 belongs to another machine: if that one is gone for good, free the name with `coracle ctl delete node n1`; else choose another with --node-name")
	_, err = join(otherDir, "own")
	require.ErrorContains(t, err, "belongs to another machine", "the server's own node is taken even while it has no Node")

	c.remove("n1")
	require.ErrorContains(t, c.believes(t, first), "was deleted", "which shuts out who had it")
	second, err := join(otherDir, "n1")
	require.NoError(t, err, "and frees the name")
	require.NoError(t, c.believes(t, second), "for who has joined, to register")
	require.Error(t, c.believes(t, first))
	c.register(t, second)
	require.ErrorContains(t, c.believes(t, first), "another machine")

	// A Node without an owner, such as one created by a user, is available to any machine with a token, and to no
	// other.
	delete(c.nodes["n1"].Annotations, machineAnnotation)
	require.Error(t, c.believes(t, first))
	require.Error(t, c.believes(t, second))
	third, err := join(mineDir, "n1")
	require.NoError(t, err)
	require.NoError(t, c.believes(t, third))
}

// TestMembershipNeedsNoTokenTwice checks that a restarted machine is accepted by its certificate until its Node is
// deleted.
func TestMembershipNeedsNoTokenTwice(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	dir, url := t.TempDir(), server.URL
	start := func(dir, name, token string) (*identity, error) {
		i := c.machine(t, url, dir, name)
		i.token = token
		return i, i.enter(t.Context())
	}
	good := c.token.String()

	_, err := start(dir, "n1", "")
	require.ErrorContains(t, err, "has not joined the cluster yet")
	_, err = start(t.TempDir(), "n1", "swordfish")
	require.Error(t, err)
	first, err := start(dir, "n1", good)
	require.NoError(t, err)
	c.register(t, first)
	info, err := os.Stat(filepath.Join(dir, machineCertificate))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	again, err := start(dir, "n1", "")
	require.NoError(t, err)
	require.NoError(t, c.believes(t, again))
	_, err = start(dir, "n1", "a token that has expired by now")
	require.NoError(t, err, "options stay as they were")
	_, err = start(dir, "n2", "")
	require.ErrorContains(t, err, "has joined as n1")
	// A stolen certificate is worthless without the key, and so are another machine's files.
	other := t.TempDir()
	for _, file := range []string{machineCertificate, serverAuthority} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(other, file), data, 0o600))
	}
	_, err = start(other, "n1", "")
	require.ErrorContains(t, err, machineCertificate)

	c.remove("n1")
	_, err = start(dir, "n1", "")
	require.ErrorContains(t, err, "was deleted from the cluster")
	require.True(t, shutOut(err))
	back, err := start(dir, "n1", good)
	require.NoError(t, err)
	c.register(t, back)
	_, err = start(dir, "n1", "")
	require.NoError(t, err)

	// A server of another cluster is not trusted, whatever it sends.
	elsewhere := newCluster(t)
	wrong := elsewhere.serve(t, elsewhere.handler(http.NotFoundHandler()))
	url = wrong.URL
	_, err = start(dir, "n1", "")
	require.ErrorContains(t, err, "does not belong to the cluster that this machine has joined")
	wrong.Close()
	var unreachable *unreachableError
	_, err = start(dir, "n1", good)
	require.ErrorAs(t, err, &unreachable)
}

// TestRenewalNeedsTheCertificate checks that a renewal needs a certificate issued by the server for the node.
func TestRenewalNeedsTheCertificate(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	i := c.machine(t, server.URL, t.TempDir(), "n1")
	require.NoError(t, i.join(t.Context()))
	c.register(t, i)
	good := i.present.Load().credentials
	with := func(a *pki.Authority, leaf pki.Leaf) error {
		cert, err := a.Sign(leaf, i.key.Public())
		require.NoError(t, err)
		bad := good
		bad.client, err = pki.Pair(cert, i.key)
		require.NoError(t, err)
		return i.renew(t.Context(), bad)
	}
	self, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	node := pki.Leaf{Name: nodeUser("n1"), Groups: []string{nodesGroup}}
	require.ErrorContains(t, with(self.Client, node), "certificate", "made by itself")
	require.ErrorContains(t, with(c.keys.Node, node), "certificate", "what nodes serve with")
	require.ErrorContains(t, with(c.keys.Client, pki.Leaf{Name: nodeUser("n1")}), "not a node's")
	require.ErrorContains(t, with(c.keys.Client, pki.Leaf{Name: nodeUser("n2"), Groups: []string{nodesGroup}}), "has joined as n2")
	none := good
	none.client = tls.Certificate{}
	require.ErrorContains(t, i.renew(t.Context(), none), "needs the certificate")
	require.NoError(t, i.renew(t.Context(), good))
}

// TestDeletionEndsWhatIsOpen checks that deleting a Node ends its watches, and its agent with a reason.
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
	ended := make(chan error, 1)
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
	_, _ = io.ReadAll(left.Body) // it ends
	require.Equal(t, http.StatusUnauthorized, watch(gone).StatusCode)
	require.ErrorContains(t, <-ended, "the node n1 was deleted from the cluster")
	c.members.mu.Lock()
	require.Len(t, c.members.requests, 1)
	c.members.mu.Unlock()

	// If the name goes to another machine, the first one's connections end as well.
	c.register(t, c.machine(t, server.URL, t.TempDir(), "n2"))
	_, _ = io.ReadAll(kept.Body)
	for _, i := range []*identity{gone, stays} {
		i.present.Load().transport.CloseIdleConnections()
	}
}

func TestNodeOfAnotherMachine(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	own, remote := &membership{machine: "a"}, &membership{machine: "a", remote: []run.Component{&identity{}}}
	require.NoError(t, own.check(node), "nobody's yet")
	node.Annotations = map[string]string{machineAnnotation: "a"}
	require.NoError(t, own.check(node))
	node.Annotations = map[string]string{machineAnnotation: "b"}
	require.ErrorContains(t, own.check(node), "coracle server --no-node", "a server that does not start cannot be asked to delete the Node")
	require.EqualError(t, remote.check(node), ownedByOther("n1").Error())
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
func (p *pipes) Close() error   { close(p.done); return nil }
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

// mute is a connection whose peer can disappear silently.
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

// TestDeadConnectionIsLeft checks that a connection to a peer that has disappeared is closed in time to renew the
// node's lease over another one.
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

// TestCertificatesAreRenewed checks that a running agent renews its certificates in time and without ending a watch.
func TestCertificatesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.life = 3 * time.Hour // starting an hour ago, to allow for clocks that are behind: 4 in all
		var down, deny atomic.Bool
		var joins, connections atomic.Int32
		events := make(chan string)
		api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// As the API server: on each request, even on an old connection.
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

		// The server is down when the next renewal is due: it is retried, and the old certificate is used until it
		// expires.
		down.Store(true)
		time.Sleep(time.Until(began.Add(4*time.Hour - time.Minute)))
		require.Greater(t, joins.Load(), int32(3))
		require.Equal(t, secondWho, who())
		require.Less(t, joins.Load(), int32(40), "with a pause in between")
		// Even after it has expired, the machine can renew.
		time.Sleep(2 * time.Hour)
		down.Store(false)
		time.Sleep(renewalRetry)
		require.NotEqual(t, secondWho, who())
		serving()

		// A machine whose certificate is refused finds out why immediately, but not on every request.
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

		// The watch started with a certificate that expired hours ago.
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
