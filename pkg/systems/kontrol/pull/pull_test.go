package pull

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func token(cluster string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"`+subject+cluster+`"}`)) + ".c2ln"
}

type world struct {
	t       *testing.T
	hub     *Hub
	server  *httptest.Server
	api     *httptest.Server
	changes chan string
	file    string
	refuse  func() error
	conns   chan net.Conn
	wg      sync.WaitGroup
}

func newWorld(t *testing.T, api http.HandlerFunc) *world {
	w := &world{
		t:       t,
		hub:     NewHub(),
		changes: make(chan string, 100),
		conns:   make(chan net.Conn, 100),
		refuse:  func() error { return nil },
	}
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	w.wg.Go(func() { close(began); w.hub.Use(ctx, func(c string) { w.changes <- c }) })
	<-began
	w.server = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		cluster := strings.Split(r.URL.Path, "/")[5]
		if r.Header.Get("Authorization") != "Bearer "+token(cluster) || r.Header.Get("Upgrade") != Protocol {
			http.Error(rw, `{"message":"the token is not valid"}`, http.StatusUnauthorized)
			return
		}
		if err := w.refuse(); err != nil {
			http.Error(rw, err.Error(), http.StatusServiceUnavailable)
			return
		}
		Accept(rw, r, func(conn net.Conn) { w.conns <- conn; _ = w.hub.Serve(ctx, cluster, conn) })
	}))
	w.api = httptest.NewServer(api)
	w.file = filepath.Join(t.TempDir(), "token")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw})
	require.NoError(t, os.WriteFile(w.file, append([]byte(token("edge")+"\n"), ca...), 0o600))
	t.Cleanup(func() { cancel(); w.server.Close(); w.api.Close(); w.wg.Wait() })
	return w
}

func (w *world) agent() func() {
	target, err := url.Parse(w.api.URL)
	require.NoError(w.t, err)
	transport := &http.Transport{}
	a := &Agent{
		Hubs:      []string{w.server.URL},
		TokenFile: w.file,
		Target:    target,
		Transport: transport,
		Log:       slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = a.Run(ctx); transport.CloseIdleConnections() }()
	return func() { cancel(); <-ended }
}

func (w *world) connected() {
	w.t.Helper()
	select {
	case <-w.changes:
	case <-time.After(time.Minute):
		w.t.Fatal("no agent has connected")
	}
}

func (w *world) get(path string, header ...string) (int, string, error) {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://edge"+path, nil)
	require.NoError(w.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := w.hub.Transport("edge").RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// TestRequestsGoThroughTheConnection checks that requests have the agent's credentials, that only API paths are
// allowed, and that many requests and streams run concurrently.
func TestRequestsGoThroughTheConnection(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			for i := range 3 {
				fmt.Fprintln(rw, i)
				rw.(http.Flusher).Flush()
			}
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(rw, "%s auth=%q as=%q", r.URL.RequestURI(), r.Header.Get("Authorization"),
			r.Header.Get("Impersonate-User"))
	})
	_, _, err := w.get("/version")
	require.ErrorAs(t, err, new(*NotConnectedError))
	require.ErrorContains(t, err, "run `coracle agent kontrol` there")
	stop := w.agent()
	defer stop()
	w.connected()
	code, body, err := w.get("/api/v1/pods?limit=1", "Authorization", "Bearer hub", "Impersonate-User", "root")
	require.NoError(t, err)
	require.Equal(t, `/api/v1/pods?limit=1 auth="" as=""`, body)
	require.Equal(t, 200, code)
	for _, path := range []string{"/logs/", "/metrics", "/debug/pprof", "/api/v1/../../metrics", "/"} {
		code, _, err = w.get(path)
		require.NoError(t, err)
		require.Equal(t, http.StatusForbidden, code, path)
	}
	_, _, err = (&world{t: t, hub: w.hub}).get("/version")
	require.NoError(t, err)

	// A watch streams beside other requests.
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edge/api/v1/pods?watch=1", nil)
	require.NoError(t, err)
	res, err := w.hub.Transport("edge").RoundTrip(req)
	require.NoError(t, err)
	lines := bufio.NewScanner(res.Body)
	for i := range 3 {
		require.True(t, lines.Scan())
		require.Equal(t, fmt.Sprint(i), lines.Text())
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if code, _, err := w.get("/api/v1/pods"); err != nil || code != 200 {
				t.Errorf("%d %v", code, err)
			}
		})
	}
	wg.Wait()
	cancel()
	_ = res.Body.Close()
}

// TestAConnectionThatEndsIsMadeAgain checks reconnection after a cut and after replacement by another agent.
// Requests for a cluster without a connection fail at once.
func TestAConnectionThatEndsIsMadeAgain(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("ok")) })
	lost := make(chan struct{})
	var connections atomic.Int32
	w.refuse = func() error { // replacing a connection before its end is noticed is no loss
		if connections.Add(1) == 2 {
			select {
			case <-lost:
			case <-t.Context().Done():
			}
		}
		return nil
	}
	stop := w.agent()
	w.connected()
	conn := <-w.conns
	_, body, err := w.get("/version")
	require.NoError(t, err)
	require.Equal(t, "ok", body)
	_ = conn.Close()
	w.connected() // lost
	close(lost)
	w.connected() // and back
	_, body, err = w.get("/version")
	require.NoError(t, err)
	require.Equal(t, "ok", body)
	stop()
	w.connected() // lost
	_, _, err = w.get("/version")
	require.ErrorAs(t, err, new(*NotConnectedError))
}

// TestAnOldConnectionEnds checks that a token that was revoked does not stay connected.
func TestAnOldConnectionEnds(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("ok")) })
	w.hub.life = time.Millisecond
	var connections atomic.Int32
	refused := make(chan struct{})
	w.refuse = func() error {
		switch connections.Add(1) {
		case 1:
			return nil
		case 2:
			close(refused)
		}
		return errors.New("the token was revoked")
	}
	stop := w.agent()
	defer stop()
	w.connected()
	w.connected() // ended
	<-refused
	_, _, err := w.get("/version")
	require.ErrorAs(t, err, new(*NotConnectedError))
}

// TestWhoMayNotConnect checks the errors for a wrong token, an unknown authority, a server without reconcilers, and
// files without a token.
func TestWhoMayNotConnect(t *testing.T) {
	w := newWorld(t, func(http.ResponseWriter, *http.Request) {})
	connect := func(file string) error {
		target, _ := url.Parse(w.api.URL)
		a := &Agent{TokenFile: file, Target: target, Transport: http.DefaultTransport, Log: slog.New(slog.DiscardHandler)}
		hub, _ := url.Parse(w.server.URL)
		return a.connect(t.Context(), hub, a.handler())
	}
	data, err := os.ReadFile(w.file)
	require.NoError(t, err)
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "t")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	require.ErrorContains(t, connect(write(strings.Replace(string(data), ".c2ln", ".xxxx", 1))),
		"the hub answers 401 Unauthorized: the token is not valid")
	require.ErrorContains(t, connect(write(token("edge"))), "certificate")
	require.ErrorContains(t, connect(write("hello")), "does not begin with a token")
	require.ErrorContains(t, connect(write("a.b.c")), "names no cluster")
	require.ErrorContains(t, connect(write(token("a/../b"))), "names no cluster")
	require.ErrorContains(t, connect(write(token("edge")+"\nrubbish")), "not a PEM certificate")
	require.Error(t, connect(write(strings.Repeat("x", maxToken+1))))
	w.refuse = func() error { return errors.New("not here") }
	require.ErrorContains(t, connect(w.file), "the hub answers 503 Service Unavailable: not here")
	require.ErrorIs(t, NewHub().Ready("edge"), ErrElsewhere)
	for _, hub := range []string{"http://a", "https://u:p@a", "https://a/path", "x", ""} {
		require.ErrorContains(t, (&Agent{Hubs: []string{hub}, TokenFile: w.file}).Run(t.Context()), "is not a URL")
	}
	require.ErrorContains(t, (&Agent{TokenFile: w.file}).Run(t.Context()), "--hub is required")
}
