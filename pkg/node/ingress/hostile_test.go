package ingress

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHostileRequests checks that a request that two servers might read differently is rejected, or reaches the
// backend as one unambiguous request.
func TestHostileRequests(t *testing.T) {
	var got atomic.Int32
	back := backendOf(t, func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %q %d %v %q", r.Method, r.RequestURI, b, r.ContentLength, r.TransferEncoding,
			r.Header.Get("X-Fold"))
	})
	f := serve(t, back)
	for _, c := range []struct {
		name, request string
		status        int
		body          string
	}{
		{
			"both lengths",
			"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\nConnection: " +
				"close\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", 200, `POST / "" -1 [chunked] ""`,
		},
		{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nContent-Length: 5\r\n\r\nabcdef", 400, ""},
		{"an unknown encoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, ""},
		{
			"an encoding twice",
			"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501, "",
		},
		{
			"a folded header",
			"GET / HTTP/1.1\r\nHost: a\r\nX-Fold: a\r\n Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n", 200,
			`GET / "" 0 [] "a Transfer-Encoding: chunked"`,
		},
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

// TestForwardedHeaders checks that a client cannot set or remove the headers that describe it.
func TestForwardedHeaders(t *testing.T) {
	back := backendOf(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{
			"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Real-Ip", "Forwarded",
			"X-Original-Url", "X_forwarded_for", "Upgrade", "Http2-Settings",
		} {
			fmt.Fprintf(w, "%s=%s;", name, strings.Join(r.Header[name], ","))
		}
		fmt.Fprintf(w, "Host=%s", r.Host)
	})
	f := serve(t, back)
	status, body := f.raw("GET / HTTP/1.1\r\nHost: a.example.com\r\nX-Forwarded-For: 6.6.6.6\r\nx-real-ip: " +
		"6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n" +
		"X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Original-URL: /admin\r\nConnection: close, " +
		"X-Forwarded-For, X-Real-Ip\r\n\r\n")
	require.Equal(t, 200, status)
	_, port, _ := net.SplitHostPort(f.http)
	require.Equal(t,
		"X-Forwarded-For=127.0.0.1;X-Forwarded-Host=a.example.com;X-Forwarded-Proto=http;X-Forwarded-Port="+port+
			";X-Real-Ip=127.0.0.1;Forwarded=;X-Original-Url=;X_forwarded_for=;Upgrade=;Http2-Settings=;Host=a.example.com", body)
	status, body = f.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " +
		"h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	require.Equal(t, 200, status)
	require.Contains(t, body, "Upgrade=;Http2-Settings=;",
		"no HTTP/2 connection to the backend can be had that is not routed")
}

// TestFewCannotTakeAll checks that neither some clients nor one namespace, whose backends may be slow, can hold all
// requests.
func TestFewCannotTakeAll(t *testing.T) {
	f := serve(t, backendOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	h := f.handler
	ask := func(client string) int {
		r, w := httptest.NewRequest(http.MethodGet, "http://b/", nil), httptest.NewRecorder()
		r.RemoteAddr = client + ":1"
		h.ServeHTTP(w, r)
		return w.Code
	}
	for n := range 8 {
		for range maxRequestsEach {
			enter(h, h.clients, netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}))
		}
	}
	require.Equal(t, http.StatusTooManyRequests, ask("10.0.0.0"))
	require.Equal(t, http.StatusOK, ask("10.0.0.9"), "another client")
	for enter(h, h.namespaces, "ns") {
	}
	require.Equal(t, http.StatusServiceUnavailable, ask("10.0.0.9"))
	require.True(t, enter(h, h.namespaces, "other"))
	leave(h, h.namespaces, "ns")
	require.Equal(t, http.StatusOK, ask("10.0.0.9"))
	require.Equal(t, http.StatusOK, ask("10.0.0.9"), "a request leaves both shares")
}

// TestSlowClients checks that a client loses its connection if it does not complete its header, stops within a body,
// or does not read the response.
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
	start := func(header time.Duration) string {
		s := newServer(Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler)}, h)
		require.LessOrEqual(t, s.http.ReadHeaderTimeout, 10*time.Second)
		s.http.ReadHeaderTimeout = header
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s.done.Go(func() { _ = s.http.Serve(l) })
		t.Cleanup(s.stop)
		return l.Addr().String()
	}
	t.Cleanup(h.transport.CloseIdleConnections)
	// Complete headers go to a server with a long timeout, since a busy machine may delay this process between
	// connecting and sending.
	hasty, f := start(50*time.Millisecond), &front{t: t, handler: h, http: start(time.Minute)}
	f.to(back)
	send := func(to, text string) net.Conn {
		c, err := net.Dial("tcp", to)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(c, text)
		require.NoError(t, err)
		return c
	}
	c := send(hasty, "GET / HTTP/1.1\r\nHost: a\r\nX-")
	_, err := io.ReadAll(c) // until the server closes it
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_ = c.Close()
	c = send(f.http, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab")
	require.Error(t, <-read)
	_ = c.Close()
	c = send(f.http, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") // and do not read
	<-read
	_ = c.Close()
}

// TestTooManyConnections checks that connections from one address beyond its limit are closed.
func TestTooManyConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := newHandler(slog.New(slog.DiscardHandler), false, 0)
	s := newServer(Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler)}, h)
	s.limits.Each = 3
	s.serve(l, s.http)
	defer s.stop()
	for n := range 5 {
		c, err := net.Dial("tcp", l.Addr().String())
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
