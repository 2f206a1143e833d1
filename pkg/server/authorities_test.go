package server

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/base/pki"
)

const replacingURL = "https://127.0.0.1:6443"

// replacing is a cluster whose CAs can be replaced, served within a synctest bubble.
type replacing struct {
	*testCluster
	*authorities
	objects  ctrl.Client
	dir      string
	listener *pipes
	before   func(http.ResponseWriter, *http.Request) (serve bool) // may be nil
}

func newReplacing(t *testing.T, api http.HandlerFunc) *replacing {
	t.Helper()
	c, dir := newCluster(t), t.TempDir()
	var err error
	c.keys, err = pki.Load(dir)
	require.NoError(t, err)
	c.joiner.keys = c.keys
	c.token, err = jointoken.New(c.keys.Server.Bundle())
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	r := &replacing{testCluster: c, objects: fake.NewClientBuilder().WithScheme(scheme).Build(), dir: dir,
		listener: &pipes{conns: make(chan net.Conn), done: make(chan struct{})}}
	r.authorities = newAuthorities(c.keys, r.objects, slog.New(slog.DiscardHandler))
	r.changed = []func() error{func() error { c.members.endUnbelieved(c.keys.Client.Pool()); return nil }}
	serving, err := c.keys.Server.NewSource(pki.Leaf{Name: "coracle", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	config := &tls.Config{
		GetCertificate: serving.Server,
		ClientAuth:     tls.RequestClientCert,
		NextProtos:     []string{"h2", "http/1.1"},
	}
	server := &http.Server{
		TLSConfig: pki.FollowClientCAs(config, c.keys.Client.Pool), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Handler: c.members.handler(r.authorities.handler(c.joiner.handler(api))),
	}
	inner := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if r.before == nil || r.before(w, q) {
			inner.ServeHTTP(w, q)
		}
	})
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(r.listener, "", "") }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return r
}

// joined returns a machine that has joined and registered its Node.
func (r *replacing) joined(t *testing.T, name string) *identity {
	t.Helper()
	i := r.newMachine(t, name)
	require.NoError(t, i.join(t.Context()))
	r.register(t, i)
	require.NoError(t, r.objects.Create(t.Context(), r.testCluster.nodes[name].DeepCopy()))
	t.Cleanup(func() { i.present.Load().transport.CloseIdleConnections() })
	return i
}

func (r *replacing) newMachine(t *testing.T, name string) *identity {
	t.Helper()
	i := r.machine(t, replacingURL, t.TempDir(), name)
	i.servers.Dial = r.listener.dial
	return i
}

func runs(t *testing.T, i *identity) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

func heard(t *testing.T, by http.RoundTripper) {
	t.Helper()
	answer, err := (&http.Client{Transport: by}).Get(replacingURL)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	synctest.Wait()
}

func (r *replacing) behind(t *testing.T) (all []string) {
	t.Helper()
	s, err := r.state(t.Context(), time.Now())
	require.NoError(t, err)
	for _, b := range s.Behind {
		all = append(all, b.Node+b.User)
	}
	return all
}

// TestNodesFollowTheAuthorities checks that a node updates CAs and certificates after its next request, in both
// phases of a replacement.
func TestNodesFollowTheAuthorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplacing(t, func(http.ResponseWriter, *http.Request) {})
		n1, away := r.joined(t, "n1"), r.joined(t, "n2")
		runs(t, n1)
		oldToken := r.token
		first := n1.present.Load()
		heard(t, n1)
		require.Same(t, first, n1.present.Load(), "nothing has changed")

		_, err := r.finish(t.Context(), nil, false)
		require.ErrorContains(t, err, "rotate --ca` begins it")
		_, err = r.replace(t.Context(), []string{"kelp"})
		require.ErrorContains(t, err, "server, client and node")
		_, err = r.replace(t.Context(), nil)
		require.NoError(t, err)
		_, err = r.replace(t.Context(), nil)
		require.ErrorContains(t, err, "in progress already")
		require.Equal(t, []string{"n1", "n2"}, r.behind(t))

		heard(t, n1)
		second := n1.present.Load()
		require.Equal(t, r.testCluster.keys.Version(), second.Version)
		byNew, _ := r.testCluster.keys.Client.Signed(second.client.Leaf)
		require.True(t, byNew)
		byNew, _ = r.testCluster.keys.Node.Signed(second.serving.Leaf)
		require.True(t, byNew)
		require.Equal(t, r.testCluster.keys.Server.Bundle(), second.ServerCA)
		heard(t, n1)
		require.Equal(t, []string{"n2"}, r.behind(t))
		_, err = r.finish(t.Context(), nil, false)
		require.ErrorContains(t, err, "node n2")
		require.ErrorContains(t, err, "--force")

		// Earlier tokens are valid until the end; new tokens contain the new CA.
		require.NoError(t, r.newMachine(t, "n3").join(t.Context()))
		newToken, err := jointoken.New(r.testCluster.keys.Server.Bundle())
		require.NoError(t, err)

		// A restarted server has no record of the others, and continues.
		keys, err := pki.Load(r.dir)
		require.NoError(t, err)
		again := newAuthorities(keys, r.objects, slog.New(slog.DiscardHandler))
		s, err := again.state(t.Context(), time.Now())
		require.NoError(t, err)
		require.True(t, s.Replacing)
		require.Len(t, s.Behind, 2)
		require.Equal(t, r.present.Load(), again.present.Load())

		_, err = r.finish(t.Context(), nil, true)
		require.NoError(t, err)
		require.Empty(t, r.behind(t))
		heard(t, n1)
		time.Sleep(followPause)
		heard(t, n1)
		third := n1.present.Load()
		require.Equal(t, r.testCluster.keys.Version(), third.Version)
		require.NotEqual(t, second.ClientCA, third.ClientCA)
		require.Same(t, third.clients, n1.clientCAs(), "whom the node's own API believes")

		away.present.Load().transport.CloseIdleConnections()
		_, err = (&http.Client{Transport: away}).Get(replacingURL)
		require.ErrorContains(t, err, "unknown authority")
		require.Len(t, away.refused, 1, "the agent is to find out why at once")
		require.ErrorContains(t, away.renew(t.Context(), away.present.Load().credentials),
			"were replaced while this machine was away")

		r.token = oldToken
		require.ErrorContains(t, r.newMachine(t, "n4").join(t.Context()), "make a new token")
		r.token = newToken
		require.NoError(t, r.newMachine(t, "n4").join(t.Context()))
	})
}

// TestAServerThatKeepsChangingIsFollowedSlowly checks that an agent renews its certificates at most every few
// seconds, whatever the server sends.
func TestAServerThatKeepsChangingIsFollowedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		r := newReplacing(t, func(w http.ResponseWriter, _ *http.Request) {
			n++
			w.Header().Set(versionHeader, strconv.Itoa(n))
		})
		n1 := r.joined(t, "n1")
		runs(t, n1)
		changes, last := 0, n1.present.Load()
		for range 100 {
			heard(t, n1)
			if now := n1.present.Load(); now != last {
				changes, last = changes+1, now
			}
			time.Sleep(time.Second)
		}
		require.InDelta(t, 20, changes, 2)
	})
}

// TestAServerThatIsKilledMeanwhileIsFollowed checks that an agent whose renewal fails because the server is down
// retries when it is back, long before its next regular renewal, and does not flood it.
func TestAServerThatIsKilledMeanwhileIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplacing(t, func(http.ResponseWriter, *http.Request) {})
		n1 := r.joined(t, "n1")
		var renewals atomic.Int32
		var down atomic.Bool
		down.Store(true)
		r.before = func(w http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path != renewPath {
				return true
			}
			renewals.Add(1)
			if down.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return !down.Load()
		}
		runs(t, n1)
		_, err := r.replace(t.Context(), nil)
		require.NoError(t, err)
		heard(t, n1)
		require.EqualValues(t, 1, renewals.Load())
		for range 60 {
			heard(t, n1)
			time.Sleep(time.Second)
		}
		require.InDelta(t, 3, renewals.Load(), 1, "after 0, 10 and 30 s")
		down.Store(false)
		time.Sleep(followAfter(4))
		heard(t, n1)
		require.Equal(t, r.testCluster.keys.Version(), n1.present.Load().Version)
	})
}

// TestOldClientCertificatesAreKnown checks that a client certificate in use prevents the end of the replacement, and
// that all its connections are closed after it.
func TestOldClientCertificatesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplacing(t, func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/watch" {
				w.(http.Flusher).Flush()
				<-req.Context().Done()
			}
		})
		user := func(a *pki.Authority, name string) *http.Transport {
			cert, key, err := a.Issue(pki.Leaf{Name: name})
			require.NoError(t, err)
			pair, err := tls.X509KeyPair(cert, key)
			require.NoError(t, err)
			transport := &http.Transport{
				DialContext: r.listener.dial, ForceAttemptHTTP2: true,
				TLSClientConfig: &tls.Config{RootCAs: r.testCluster.keys.Server.Pool(),
					GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }},
			}
			t.Cleanup(transport.CloseIdleConnections)
			return transport
		}
		watch := func(by *http.Transport) *http.Response {
			answer, err := (&http.Client{Transport: by}).Get(replacingURL + "/watch")
			require.NoError(t, err)
			t.Cleanup(func() { _ = answer.Body.Close() })
			return answer
		}
		ann := user(r.testCluster.keys.Client, "ann")
		open := watch(ann)
		_, err := r.replace(t.Context(), []string{"client"})
		require.NoError(t, err)
		require.Empty(t, r.behind(t), "none was heard of")
		bob, liar := user(r.testCluster.keys.Client, "bob"), user(newCluster(t).keys.Client, "mallory")
		for _, by := range []*http.Transport{ann, bob, liar} {
			heard(t, by)
		}
		require.Equal(t, []string{"ann"}, r.behind(t))
		_, err = r.finish(t.Context(), nil, false)
		require.ErrorContains(t, err, "user ann sends requests with a client certificate of the old authority")
		time.Sleep(recently)
		require.Empty(t, r.behind(t))
		stays := watch(bob)
		_, err = r.finish(t.Context(), []string{"client"}, false)
		require.NoError(t, err)
		_, _ = io.ReadAll(open.Body) // it ends
		r.members.mu.Lock()
		require.Len(t, r.members.requests[""], 1, "bob's")
		r.members.mu.Unlock()
		require.NoError(t, stays.Body.Close())
	})
}

// TestMembersAreNotMadeUp checks that a certificate of another CA is not recorded as a node.
func TestMembersAreNotMadeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplacing(t, func(http.ResponseWriter, *http.Request) {})
		r.joined(t, "n1")
		_, err := r.replace(t.Context(), nil)
		require.NoError(t, err)
		stranger := newCluster(t)
		cert, _, err := stranger.keys.Client.Issue(pki.Leaf{Name: nodeUser("n1"), Groups: []string{nodesGroup}})
		require.NoError(t, err)
		r.saw(certificate(t, cert), "n1", true, r.testCluster.keys.Version(), time.Now())
		require.Equal(t, []string{"n1"}, r.behind(t))
		cert, _, err = r.testCluster.keys.Client.Issue(pki.Leaf{Name: nodeUser("n1"), Groups: []string{nodesGroup}})
		require.NoError(t, err)
		r.saw(certificate(t, cert), "n1", true, strings.Repeat("x", 1<<20), time.Now())
		require.Empty(t, r.authorities.nodes)
		r.saw(certificate(t, cert), "n1", true, r.testCluster.keys.Version(), time.Now())
		require.Empty(t, r.behind(t))
		r.forget("n1")
		require.Equal(t, []string{"n1"}, r.behind(t))
	})
}
