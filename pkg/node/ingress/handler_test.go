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
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	networkingv1 "k8s.io/api/networking/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type front struct {
	t           testing.TB
	handler     *handler
	http, https string
}

// serve routes all requests to the backends, round-robin.
func serve(t testing.TB, backends ...string) *front {
	h := newHandler(slog.New(slog.DiscardHandler), true, 8443)
	s := newServer(Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler)}, h)
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

// TestUpgrade checks a protocol upgrade such as WebSocket, in both directions.
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
	f.to() // the route is removed, the connection stays
	fmt.Fprintf(c, "still\n")
	line, err := b.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "echo still\n", line)
}

// TestHTTP2AndTrailers checks HTTP/2 from the client and to an h2c backend, with streaming in both directions and
// trailers, as gRPC needs.
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

// TestRetry checks that only repeatable requests skip an unreachable endpoint.
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

// TestStreaming checks that parts of requests and responses arrive before the whole is complete.
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

// TestChangesDropNothing checks that no request fails while the table is replaced continuously.
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
