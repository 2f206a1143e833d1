package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	networkingv1 "k8s.io/api/networking/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// front is a running ingress in front of backends.
type front struct {
	t           testing.TB
	handler     *handler
	http, https string
}

// serve routes all requests to the backends, in turn.
func serve(t testing.TB, backends ...string) *front {
	h := newHandler(slog.New(slog.DiscardHandler), true, 8443)
	s := newServer(Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler)}, h)
	// The ports are free ones of loopback.
	f := &front{t: t, handler: h}
	for _, one := range []*http.Server{s.http, s.https} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		if one == s.http {
			f.http = l.Addr().String()
			s.done.Go(func() { _ = one.Serve(l) })
		} else {
			f.https = l.Addr().String()
			s.done.Go(func() { _ = one.ServeTLS(l, "", "") })
		}
	}
	f.to(backends...)
	t.Cleanup(func() {
		s.stop()
		h.transport.CloseIdleConnections()
		h.h2c.CloseIdleConnections()
	})
	return f
}

func (f *front) to(backends ...string) {
	b := &backend{}
	for _, a := range backends {
		b.h2c = b.h2c || strings.HasPrefix(a, "h2c://")
		b.endpoints = append(b.endpoints, netip.MustParseAddrPort(a[strings.LastIndexByte(a, '/')+1:]))
	}
	f.handler.table.Store(build([]*networkingv1.Ingress{ingressOf("i", 0, "- Prefix / b")}, reader{
		backend: func(string, *networkingv1.IngressServiceBackend) (*backend, error) { return b, nil }}))
}

func backendOf(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// raw sends bytes and returns the first response.
func (f *front) raw(text string) (status int, body string) {
	c, err := net.Dial("tcp", f.http)
	require.NoError(f.t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, err = io.WriteString(c, text)
	require.NoError(f.t, err)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

// TestHostileRequests: what two servers might read differently is refused, or reaches the backend as one unambiguous request.
func TestHostileRequests(t *testing.T) {
	var got atomic.Int32
	back := backendOf(t, func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %q %d %v %q", r.Method, r.RequestURI, b, r.ContentLength, r.TransferEncoding, r.Header.Get("X-Fold"))
	})
	f := serve(t, back)
	for _, c := range []struct {
		name, request string
		status        int
		body          string
	}{
		{"both lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", 200, `POST / "" -1 [chunked] ""`},
		{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nContent-Length: 5\r\n\r\nabcdef", 400, ""},
		{"an unknown encoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, ""},
		{"an encoding twice", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501, ""},
		{"a folded header", "GET / HTTP/1.1\r\nHost: a\r\nX-Fold: a\r\n Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n", 200, `GET / "" 0 [] "a Transfer-Encoding: chunked"`},
		{"a bare CR", "GET / HTTP/1.1\r\nHost: a\r\nX-Fold: a\rTransfer-Encoding: chunked\r\n\r\n", 400, ""},
		{"a space before the colon", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nabcde", 400, ""},
		{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, ""},
		{"no host", "GET / HTTP/1.1\r\n\r\n", 400, ""},
		{"a bad chunk", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5x\r\nabcde\r\n0\r\n\r\n", 502, ""},
		{"dots", "GET /public/../admin HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
		{"encoded dots", "GET /public/%2e%2E/admin HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
		{"a backslash", "GET /public/..\\admin HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
		{"a tunnel", "CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: 10.0.0.1:22\r\n\r\n", 400, ""},
		{"a large header", "GET / HTTP/1.1\r\nHost: a\r\nX-Large: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n", 431, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			before := got.Load()
			status, body := f.raw(c.request)
			require.Equal(t, c.status, status, body)
			if c.status == 200 {
				require.Equal(t, c.body, body)
				require.Equal(t, before+1, got.Load(), "one request reaches the backend")
			}
		})
	}
	f.t = t
}

// TestForwardedHeaders: a client cannot say who it is, nor remove what is said about it.
func TestForwardedHeaders(t *testing.T) {
	back := backendOf(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Real-Ip", "Forwarded", "X-Original-Url", "X_forwarded_for", "Upgrade", "Http2-Settings"} {
			fmt.Fprintf(w, "%s=%s;", name, strings.Join(r.Header[name], ","))
		}
		fmt.Fprintf(w, "Host=%s", r.Host)
	})
	f := serve(t, back)
	status, body := f.raw("GET / HTTP/1.1\r\nHost: a.example.com\r\nX-Forwarded-For: 6.6.6.6\r\nx-real-ip: 6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n" +
		"X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Original-URL: /admin\r\nConnection: close, X-Forwarded-For, X-Real-Ip\r\n\r\n")
	require.Equal(t, 200, status)
	_, port, _ := net.SplitHostPort(f.http)
	require.Equal(t, "X-Forwarded-For=127.0.0.1;X-Forwarded-Host=a.example.com;X-Forwarded-Proto=http;X-Forwarded-Port="+port+
		";X-Real-Ip=127.0.0.1;Forwarded=;X-Original-Url=;X_forwarded_for=;Upgrade=;Http2-Settings=;Host=a.example.com", body)
	status, body = f.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	require.Equal(t, 200, status)
	require.Contains(t, body, "Upgrade=;Http2-Settings=;", "no HTTP/2 connection to the backend can be had that is not routed")
}

// TestUpgrade: a protocol of the client's and the backend's own, as WebSocket, in both directions.
func TestUpgrade(t *testing.T) {
	back := backendOf(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "websocket", r.Header.Get("Upgrade"))
		c, b, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = b.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = b.Flush()
		for {
			line, err := b.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = b.WriteString("echo " + line)
			_ = b.Flush()
		}
	})
	f := serve(t, back)
	c, err := net.Dial("tcp", f.http)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	require.NoError(t, err)
	b := bufio.NewReader(c)
	r, err := http.ReadResponse(b, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, r.StatusCode)
	for n := range 3 {
		fmt.Fprintf(c, "%d\n", n)
		line, err := b.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("echo %d\n", n), line)
	}
	f.to() // the route goes, the connection stays
	fmt.Fprintf(c, "still\n")
	line, err := b.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "echo still\n", line)
}

// TestHTTP2AndTrailers: HTTP/2 from the client and to an h2c backend, in both directions at once, with trailers, as gRPC needs.
func TestHTTP2AndTrailers(t *testing.T) {
	back := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		_ = http.NewResponseController(w).Flush()
		b := bufio.NewScanner(r.Body)
		for b.Scan() {
			fmt.Fprintf(w, "%s %s\n", r.Proto, b.Text())
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
	}))
	back.Config.Protocols = new(http.Protocols)
	back.Config.Protocols.SetUnencryptedHTTP2(true)
	back.Start()
	defer back.Close()
	f := serve(t, "h2c://"+back.Listener.Addr().String())
	plain := &http.Transport{Protocols: new(http.Protocols)}
	plain.Protocols.SetUnencryptedHTTP2(true)
	secure := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	for url, via := range map[string]*http.Transport{"http://" + f.http: plain, "https://" + f.https: secure} {
		in, out := io.Pipe()
		r, err := http.NewRequest("POST", url+"/a.b/C", in)
		require.NoError(t, err)
		r.Header.Set("Te", "trailers")
		a, err := via.RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, 2, a.ProtoMajor)
		b := bufio.NewReader(a.Body)
		for n := range 3 {
			fmt.Fprintf(out, "%d\n", n)
			line, err := b.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("HTTP/2.0 %d\n", n), line)
		}
		require.NoError(t, out.Close())
		_, err = io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "0", a.Trailer.Get("Grpc-Status"))
		require.NoError(t, a.Body.Close())
		via.CloseIdleConnections()
	}
}

// TestRetry: an endpoint that cannot be reached is passed over for requests that may be repeated, and for no others.
func TestRetry(t *testing.T) {
	back := backendOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	f := serve(t, "http://"+closed.Addr().String(), back)
	for range 6 {
		status, _ := f.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		require.Equal(t, 200, status)
	}
	statuses := map[int]int{}
	for range 6 {
		status, _ := f.raw("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx")
		statuses[status]++
	}
	require.Equal(t, map[int]int{200: 3, 503: 3}, statuses)
	f.to()
	status, _ := f.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	require.Equal(t, 503, status)
}

// TestStreaming: what the backend writes arrives before it has finished, and what the client sends before it has.
func TestStreaming(t *testing.T) {
	next := make(chan struct{})
	back := backendOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-next
		_, _ = io.WriteString(w, "second\n")
	})
	f := serve(t, back)
	r, err := http.Get("http://" + f.http)
	require.NoError(t, err)
	defer r.Body.Close()
	b := bufio.NewReader(r.Body)
	line, err := b.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "first\n", line)
	close(next)
	line, err = b.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "second\n", line)
	http.DefaultClient.CloseIdleConnections()
}

// TestChangesDropNothing: the table is replaced all the time, and no request fails.
func TestChangesDropNothing(t *testing.T) {
	one := backendOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "one") })
	two := backendOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "two") })
	f := serve(t, one)
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	changing.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			f.to([]string{one, two}[n%2])
		}
	})
	client := &http.Client{Transport: &http.Transport{}}
	seen := map[string]int{}
	for range 500 {
		r, err := client.Get("http://" + f.http)
		require.NoError(t, err)
		b, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		seen[string(b)]++
	}
	cancel()
	changing.Wait()
	client.CloseIdleConnections()
	require.Equal(t, 500, seen["one"]+seen["two"])
}

// TestOneClientCannotTakeAll: a client's requests are bounded, and others are served meanwhile.
func TestOneClientCannotTakeAll(t *testing.T) {
	h := newHandler(slog.New(slog.DiscardHandler), false, 0)
	greedy, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for range maxRequestsEach {
		require.Zero(t, h.enter(greedy))
	}
	require.Equal(t, http.StatusTooManyRequests, h.enter(greedy))
	require.Zero(t, h.enter(other))
	h.leave(other)
	for n := range maxRequests - maxRequestsEach {
		require.Zero(t, h.enter(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})))
	}
	require.Equal(t, http.StatusServiceUnavailable, h.enter(other))
	h.leave(greedy)
	require.Zero(t, h.enter(other))
}

func TestRedirect(t *testing.T) {
	f := serve(t)
	i := ingressOf("i", 0, "a.example.com Prefix / b")
	i.Annotations = map[string]string{annotationRedirect: "true"}
	f.handler.table.Store(build([]*networkingv1.Ingress{i}, named))
	c, err := net.Dial("tcp", f.http)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET /x?y=z HTTP/1.1\r\nHost: a.example.com:80\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(http.StatusPermanentRedirect), strconv.Itoa(r.StatusCode))
	require.Equal(t, "https://a.example.com:8443/x?y=z", r.Header.Get("Location"))
}

// TestSlowClients: a client that does not finish its header, stops in the middle of a body, or does not take the response loses its connection.
func TestSlowClients(t *testing.T) {
	read := make(chan error, 1)
	back := backendOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, err := io.Copy(io.Discard, r.Body)
			read <- err
			return
		}
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
		read <- r.Context().Err()
	})
	h := newHandler(slog.New(slog.DiscardHandler), false, 0)
	h.stall = 50 * time.Millisecond
	s := newServer(Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler)}, h)
	require.LessOrEqual(t, s.http.ReadHeaderTimeout, 10*time.Second)
	s.http.ReadHeaderTimeout = 50 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.done.Go(func() { _ = s.http.Serve(l) })
	defer func() { s.stop(); h.transport.CloseIdleConnections() }()
	f := &front{t: t, handler: h, http: l.Addr().String()}
	f.to(back)
	send := func(text string) net.Conn {
		c, err := net.Dial("tcp", f.http)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(c, text)
		require.NoError(t, err)
		return c
	}
	c := send("GET / HTTP/1.1\r\nHost: a\r\nX-")
	_, _ = io.ReadAll(c) // until it is closed
	_ = c.Close()
	c = send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab")
	require.Error(t, <-read)
	_ = c.Close()
	c = send("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // and reads nothing
	<-read
	_ = c.Close()
}

// TestTooManyConnections: those of one address beyond its limit are closed.
func TestTooManyConnections(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := netip.MustParseAddrPort(free.Addr().String())
	require.NoError(t, free.Close())
	h := newHandler(slog.New(slog.DiscardHandler), false, 0)
	s := newServer(Config{NodeName: "n1", Addresses: []netip.Addr{at.Addr()}, HTTPPort: at.Port(), Log: slog.New(slog.DiscardHandler)}, h)
	s.limits.Each = 3
	require.Empty(t, s.listen())
	defer s.stop()
	for n := range 5 {
		c, err := net.Dial("tcp", at.String())
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.Equal(t, n < 3, err == nil, "connection %d: %v", n, err)
		if err == nil {
			_ = r.Body.Close()
		}
	}
}
