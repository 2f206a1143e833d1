package servers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func noDial(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }

func newList(t require.TestingT, c Config) *List {
	if c.Dial == nil {
		c.Dial = noDial
	}
	c.Log = slog.New(slog.DiscardHandler)
	l, err := New(c)
	require.NoError(t, err)
	return l
}

func addresses(n int) (list []netip.AddrPort) {
	for i := range n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 6443))
	}
	return list
}

func TestServersAreLearnedAndKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers")
	l := newList(t, Config{Seeds: []string{"cluster.example.org:6443"}, File: file})
	require.Equal(t, "cluster.example.org:6443", l.Current())
	l.Set(nil)
	require.Equal(t, []string{"cluster.example.org:6443"}, l.Addresses())
	hostile := append(addresses(2), netip.MustParseAddrPort("0.0.0.0:6443"), netip.MustParseAddrPort("224.0.0.1:6443"),
		netip.MustParseAddrPort("192.0.2.9:0"), netip.MustParseAddrPort("[fe80::1%eth0]:6443"), netip.AddrPort{},
		addresses(1)[0])
	l.Set(hostile)
	require.ElementsMatch(t, []string{"192.0.2.1:6443", "192.0.2.2:6443", "cluster.example.org:6443"}, l.Addresses())
	require.Equal(t, "cluster.example.org:6443", l.Addresses()[2], "seeds are tried last")
	require.Equal(t, "cluster.example.org:6443", l.Current(), "a working server stays current")

	again := newList(t, Config{Seeds: []string{"cluster.example.org:6443"}, File: file})
	require.Equal(t, l.Addresses(), again.Addresses())
	l.Set(addresses(200))
	require.Len(t, l.Addresses(), Most+1)

	require.NoError(t, os.WriteFile(file, []byte("192.0.2.1:6443\nnot an address\n"), 0o600))
	require.Len(t, newList(t, Config{Seeds: []string{"a:1"}, File: file}).Addresses(), 2)
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("192.0.2.1:6443\n", 1000)), 0o600))
	require.Equal(t, []string{"a:1"}, newList(t, Config{Seeds: []string{"a:1"}, File: file}).Addresses(), "too large")
}

func TestAnOutageIsLeftAloneForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newList(t, Config{Seeds: []string{"a:1", "b:1"}})
		down := errors.New("refused")
		for range 10 { // many requests fail together
			l.failed("a:1", down)
		}
		require.Equal(t, "b:1", l.Current())
		time.Sleep(time.Minute)
		require.Equal(t, "b:1", l.Current(), "it does not fail back")
		l.failed("b:1", down)
		require.Equal(t, "a:1", l.Current())
		l.failed("a:1", down)
		time.Sleep(3 * time.Second)
		l.works("b:1")
		for range 10 {
			l.failed("a:1", down)
			time.Sleep(2 * pauseMost)
		}
		l.failed("a:1", down)
		require.GreaterOrEqual(t, time.Until(l.outages["a:1"].until), pauseMost/2)
		require.LessOrEqual(t, time.Until(l.outages["a:1"].until), pauseMost*3/2)
		l.failed("b:1", down)
		require.Equal(t, "b:1", l.Current(), "if all are down, the one that may be back first is tried")
	})
}

// TestClientsOfADeadServerSpread: clients of a dead server fail over to different servers.
func TestClientsOfADeadServerSpread(t *testing.T) {
	const clients = 300
	next := map[string]int{}
	for i := range clients {
		l := newList(t, Config{Seeds: []string{"192.0.2.1:6443"}, Client: fmt.Sprintf("node-%d", i)})
		l.Set(addresses(4))
		l.failed("192.0.2.1:6443", errors.New("refused"))
		next[l.Current()]++
	}
	require.Len(t, next, 3)
	for a, n := range next {
		require.Greater(t, n, clients/6, a)
	}
}

// TestTheListHolds: for any input, the list is bounded and not empty.
func TestTheListHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newList(t, Config{Seeds: []string{"a:1"}})
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				l.Set(addresses(rapid.IntRange(0, 100).Draw(t, "servers")))
			case 1:
				l.failed(rapid.SampledFrom(l.Addresses()).Draw(t, "failed"), io.EOF)
			case 2:
				l.works(rapid.SampledFrom(l.Addresses()).Draw(t, "works"))
			}
			all := l.Addresses()
			require.Contains(t, all, l.Current())
			require.Contains(t, all, "a:1")
			require.LessOrEqual(t, len(all), Most+1)
			require.LessOrEqual(t, len(l.outages), len(all))
		}
	})
}

func serve(t *testing.T, address string, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	require.NoError(t, s.Listener.Close())
	s.Listener = listener
	s.EnableHTTP2 = true
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (l *List) client(t *testing.T, s *httptest.Server) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, ServerName: "example.com"},
		DialContext:       l.DialContext,
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: l.Transport(transport)}
}

func hostOf(s *httptest.Server) string { return s.Listener.Addr().String() }

func TestRequestsFollowTheServers(t *testing.T) {
	named := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/watch" {
				_, _ = io.WriteString(w, name+"\n")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return
			}
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %s%s", name, body, r.Host)
		}
	}
	a, b := serve(t, "127.0.0.2:0", named("a")), serve(t, "127.0.0.3:0", named("b"))
	l := newList(t, Config{Seeds: []string{hostOf(a)}, Dial: (&net.Dialer{}).DialContext})
	c := l.client(t, a)
	ask := func(method, body string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://cluster/", strings.NewReader(body))
		require.NoError(t, err)
		answer, err := c.Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "a x"+hostOf(a), ask(http.MethodPost, "x"))
	l.Set([]netip.AddrPort{netip.MustParseAddrPort(hostOf(a)), netip.MustParseAddrPort(hostOf(b))})
	require.Equal(t, "a "+hostOf(a), ask(http.MethodGet, ""))

	watch, err := c.Get("https://cluster/watch")
	require.NoError(t, err)
	defer watch.Body.Close()
	line := make([]byte, 2)
	_, err = io.ReadFull(watch.Body, line)
	require.NoError(t, err)
	require.Equal(t, "a\n", string(line))

	// The server leaves the cluster but keeps running.
	l.Set([]netip.AddrPort{netip.MustParseAddrPort(hostOf(b))})
	_, err = watch.Body.Read(line)
	require.Error(t, err, "its connections are closed")
	require.Equal(t, "b y"+hostOf(b), ask(http.MethodPost, "y"))

	// The server returns to the cluster, and the other one dies.
	l.Set([]netip.AddrPort{netip.MustParseAddrPort(hostOf(a)), netip.MustParseAddrPort(hostOf(b))})
	b.CloseClientConnections()
	b.Close()
	require.Equal(t, "a "+hostOf(a), ask(http.MethodGet, ""))
	require.Equal(t, "a z"+hostOf(a), ask(http.MethodPost, "z"), "a write that reached no server is retried")
}

// TestAForeignServerIsNotUsed: a listed server with another certificate authority gets no request.
func TestAForeignServerIsNotUsed(t *testing.T) {
	good := serve(t, "127.0.0.2:0", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "good") })
	reached := make(chan struct{}, 1)
	// httptest's certificate is for other names.
	foreign := serve(t, "127.0.0.3:0", func(http.ResponseWriter, *http.Request) { reached <- struct{}{} })
	l := newList(t, Config{Seeds: []string{hostOf(foreign), hostOf(good)}, Dial: (&net.Dialer{}).DialContext})
	pool := x509.NewCertPool()
	pool.AddCert(good.Certificate())
	transport := &http.Transport{DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := l.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conf := &tls.Config{RootCAs: pool, ServerName: "example.com"}
		if address == hostOf(foreign) {
			conf.ServerName = "cluster.example.org"
		}
		c := tls.Client(raw, conf)
		if err := c.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return c, nil
	}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://cluster/", strings.NewReader("secret"))
	require.NoError(t, err)
	answer, err := l.RoundTrip(transport, r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "good", string(text))
	require.Empty(t, reached)
}

// TestAWriteIsNotSentTwice: the server may have applied the write before it died.
func TestAWriteIsNotSentTwice(t *testing.T) {
	l := newList(t, Config{Seeds: []string{"a:1", "b:1"}})
	var sent []string
	dies := roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.Method+" "+r.URL.Host)
		if r.URL.Host == "a:1" {
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
			return nil, io.ErrUnexpectedEOF
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		l.outages, l.current = map[string]outage{}, "a:1"
		sent = nil
		r := httptest.NewRequest(method, "https://cluster/", nil)
		answer, err := l.RoundTrip(dies, r)
		if method == http.MethodPost {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.Equal(t, []string{"POST a:1"}, sent)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, []string{"GET a:1", "GET b:1"}, sent)
	}
	require.True(t, slices.Contains(l.Addresses(), "a:1"))
}
