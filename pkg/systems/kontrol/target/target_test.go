package target

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func kubeconfig(server, user string) []byte {
	return []byte(`{"kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],"clusters":[{"name":"x","cluster":{` + server + `}}],"users":[{"name":"x","user":{` + user + `}}]}`)
}

func TestParseKubeconfig(t *testing.T) {
	const server = `"server":"https://127.0.0.1:1"`
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"a token": {kubeconfig(server, `"token":"t"`), ""},
		"a command": {
			kubeconfig(server, `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"sh"}`), "exec runs a command",
		},
		"a plugin":      {kubeconfig(server, `"auth-provider":{"name":"x"}`), "auth-provider is a plugin"},
		"a token file":  {kubeconfig(server, `"tokenFile":"/etc/shadow"`), "tokenFile is a file"},
		"a key file":    {kubeconfig(server, `"client-key":"/k"`), "client-key is a file"},
		"a certificate": {kubeconfig(server, `"client-certificate":"/k"`), "client-certificate is a file"},
		"an authority":  {kubeconfig(server+`,"certificate-authority":"/a"`, ``), "certificate-authority is a file"},
		"a password":    {kubeconfig(server, `"username":"u","password":"p"`), "no longer accepts"},
		"no server":     {kubeconfig(``, ``), `cluster "x" has no server`},
		"no context":    {[]byte(`{"kind":"Config"}`), `no context ""`},
		"no kubeconfig": {[]byte("\x00\x01"), "cannot be parsed"},
		"too large":     {[]byte(strings.Repeat("x", maxKubeconfig+1)), "larger than"},
		"no such entry": {
			[]byte(`{"kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"y"}}]}`),
			`no cluster "y"`,
		},
		"a bad key data": {kubeconfig(server, `"client-key-data":"%%"`), "cannot be parsed"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := ParseKubeconfig(c.data)
			if c.want == "" {
				require.NoError(t, err)
				require.Nil(t, cfg.ExecProvider)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

func wait(t *testing.T, p *Pool, name, reason string, changes <-chan string) Status {
	t.Helper()
	for {
		if s := p.Get(name).Status(); s.Reason == reason {
			return s
		}
		select {
		case <-changes:
		case <-time.After(time.Minute):
			t.Fatalf("%+v", p.Get(name).Status())
		}
	}
}

// TestServersThatAnswerGarbage checks that the status names the error, and that reads are bounded.
func TestServersThatAnswerGarbage(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter)
		want   string
	}{
		"fine": {
			func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"gitVersion":"v1.2.3"}`)) }, kontrol.ReasonConnected,
		},
		"no JSON":      {func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) }, kontrol.ReasonInvalidAnswer},
		"no text":      {func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 99)) }, kontrol.ReasonInvalidAnswer},
		"no version":   {func(w http.ResponseWriter) { _, _ = w.Write([]byte("{}")) }, kontrol.ReasonInvalidAnswer},
		"not found":    {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, kontrol.ReasonInvalidAnswer},
		"unauthorized": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, kontrol.ReasonUnauthorized},
		"huge": {
			func(w http.ResponseWriter) { w.Header().Set("Content-Length", "99999999999") }, kontrol.ReasonInvalidAnswer,
		},
		"many values": {
			func(w http.ResponseWriter) {
				_, _ = w.Write([]byte(`{"gitVersion":"v1","a":[` + strings.Repeat("{},", maxValues) + "{}]}"))
			}, kontrol.ReasonUnreachable,
		},
		"many commas in a text": {
			func(w http.ResponseWriter) {
				_, _ = w.Write([]byte(`{"a":"\"` + strings.Repeat("{},", maxValues) + `","gitVersion":"v1"}`))
			}, kontrol.ReasonConnected,
		},
		"hangs up": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, kontrol.ReasonUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.answer(w) }))
			defer server.Close()
			changes := make(chan string, 100)
			p := NewPool("v")
			p.Notify("test", func(name string) { changes <- name })
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			begin := func(f func(context.Context)) { wg.Go(func() { f(ctx) }) }
			cfg := Config{Kubeconfig: kubeconfig(`"server":"`+server.URL+`"`, "")}
			p.Set("c", cfg, begin)
			first := p.Get("c")
			p.Set("c", cfg, begin)
			require.Same(t, first, p.Get("c"), "the same configuration is the same connection")
			s := wait(t, p, "c", c.want, changes)
			require.Equal(t, c.want == kontrol.ReasonConnected, s.Ready)
			if !s.Ready {
				require.Contains(t, s.Message, server.URL)
				require.Nil(t, p.Get("c").Client())
				err := p.Get("c").Do(ctx, "", nil, func(context.Context, client.WithWatch) error {
					t.Error("a cluster that does not answer was asked")
					return nil
				})
				require.ErrorAs(t, err, new(*UnreachableError))
			}
			p.Remove("c")
			require.Nil(t, p.Get("c"))
			cancel()
			wg.Wait()
		})
	}
}

// TestClusterIsAskedForJSON: the clients for typed objects and for metadata ask for protobuf, which limited refuses.
func TestClusterIsAskedForJSON(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api/v1/namespaces/n":
			if strings.Contains(r.Header.Get("Accept"), "protobuf") {
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			}
			_, _ = w.Write([]byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"n","uid":"u"}}`))
		case "/api/v1":
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","groupVersion":"v1","resources":[` +
				`{"name":"namespaces","kind":"Namespace","verbs":["get"]}]}`))
		case "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
		case "/apis":
			_, _ = w.Write([]byte(`{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`))
		default:
			_, _ = w.Write([]byte(`{"gitVersion":"v1.2.3"}`))
		}
	}))
	defer server.Close()
	changes := make(chan string, 100)
	p := NewPool("v")
	p.Notify("test", func(name string) { changes <- name })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	p.Set("c", Config{Kubeconfig: kubeconfig(`"server":"`+server.URL+`"`, "")}, func(f func(context.Context)) {
		wg.Go(func() { f(ctx) })
	})
	wait(t, p, "c", kontrol.ReasonConnected, changes)
	var ns corev1.Namespace
	require.NoError(t, p.Get("c").Client().Get(ctx, client.ObjectKey{Name: "n"}, &ns))
	require.EqualValues(t, "u", ns.UID)
	meta := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	require.NoError(t, p.Get("c").Client().Get(ctx, client.ObjectKey{Name: "n"}, &meta))
	require.EqualValues(t, "u", meta.UID)
}

// A managed cluster must not take the hub's memory with a watch event that never ends, which client-go would buffer, or
// with an answer in protobuf, in which two bytes become a whole object.
func TestAnswersThatTakeMemoryAreRefused(t *testing.T) {
	const limit = 64 << 20
	sent := int64(0)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") != "":
			_, _ = w.Write([]byte(`{"type":"ADDED","object":{"a":"`))
			for chunk := bytes.Repeat([]byte("x"), 1<<20); sent < limit; sent += int64(len(chunk)) {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
			_, _ = w.Write([]byte(`"}}`))
		case r.URL.Path == "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
		case r.URL.Path == "/apis":
			_, _ = w.Write([]byte(`{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`))
		case r.URL.Path == "/api/v1":
			raw, err := (&runtime.Unknown{
				TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, Raw: bytes.Repeat([]byte{0x12, 0}, 1<<16),
			}).Marshal()
			if err == nil {
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				_, _ = w.Write(append([]byte("k8s\x00"), raw...))
			}
		default:
			_, _ = w.Write([]byte(`{"gitVersion":"v1.2.3"}`))
		}
	}))
	defer server.Close()
	tg := newTarget("c", Config{Kubeconfig: kubeconfig(`"server":"`+server.URL+`"`, "")}, NewPool("v"))
	defer tg.cancel()
	_, err := tg.client.RESTMapper().RESTMapping(schema.GroupKind{Kind: "Pod"}, "v1")
	require.ErrorContains(t, err, "the answer is not JSON")

	cfg, err := ParseKubeconfig(tg.config.Kubeconfig)
	require.NoError(t, err)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return limited{next} })
	d, err := dynamic.NewForConfig(cfg)
	require.NoError(t, err)
	w, err := d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Watch(t.Context(),
		metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	e := <-w.ResultChan()
	require.Equal(t, watch.Error, e.Type)
	server.CloseClientConnections()
	server.Close()
	require.Less(t, sent, int64(limit), "the rest was not read")
}

// TestRedirectsAreNotFollowed: a managed cluster must not send the hub to other servers, such as its own loopback
// address.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			elsewhere = true
			_, _ = w.Write([]byte(`{"gitVersion":"v1.2.3"}`))
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	changes := make(chan string, 100)
	p := NewPool("v")
	p.Notify("test", func(name string) { changes <- name })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	p.Set("c", Config{Kubeconfig: kubeconfig(`"server":"`+server.URL+`"`, "")},
		func(f func(context.Context)) { wg.Go(func() { f(ctx) }) })
	s := wait(t, p, "c", kontrol.ReasonUnreachable, changes)
	require.Contains(t, s.Message, "302")
	cancel()
	wg.Wait()
	server.Close()
	require.False(t, elsewhere)
}

// TestABusyClusterQueuesNothing checks the limit of concurrent requests. Refused callers are notified once a
// request ends. A notified caller that sends no request passes the notification on.
func TestABusyClusterQueuesNothing(t *testing.T) {
	tg := &Target{status: Status{Ready: true}, config: Config{}, wake: make(chan struct{}, 1), waits: map[string]bool{}}
	hold, notified := make(chan struct{}), make(chan string, 10)
	var wg, in sync.WaitGroup
	for range maxRequests {
		in.Add(1)
		wg.Go(func() {
			_ = tg.Do(t.Context(), "", nil, func(context.Context, client.WithWatch) error { in.Done(); <-hold; return nil })
		})
	}
	in.Wait()
	for _, key := range []string{"a", "b", "a", "c", "d"} {
		require.ErrorIs(t, tg.Do(t.Context(), key, func() { notified <- key }, nil), ErrBusy)
	}
	tg.Next()
	require.Empty(t, notified, "it is busy")
	hold <- struct{}{}
	require.Equal(t, "a", <-notified)
	tg.Next()
	require.Equal(t, "b", <-notified, "a made no request")
	require.NoError(t, tg.Do(t.Context(), "b", nil, func(context.Context, client.WithWatch) error { return nil }))
	require.Equal(t, "c", <-notified)
	tg.cancel = func() {}
	tg.end()
	require.Equal(t, "d", <-notified, "the connection is replaced")
	close(hold)
	wg.Wait()
	require.Empty(t, notified)
}

// TestALostRequestIsNoOutage checks that after a lost request all callers wait for a probe, and that only a failed
// probe reports an outage.
func TestALostRequestIsNoOutage(t *testing.T) {
	answers := make(chan int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case code := <-answers:
			w.WriteHeader(code)
			_, _ = w.Write([]byte(`{"gitVersion":"v1.2.3"}`))
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	changes := make(chan Status, 100)
	p := NewPool("v")
	p.Notify("test", func(name string) { changes <- p.Get(name).Status() })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	p.Set("c", Config{Kubeconfig: kubeconfig(`"server":"`+server.URL+`"`, "")}, func(f func(context.Context)) {
		wg.Go(func() { f(ctx) })
	})
	c := p.Get("c")
	<-changes // it connects
	answers <- http.StatusOK
	up := <-changes
	require.True(t, up.Ready)
	lose := func() {
		var lost *UnreachableError
		require.ErrorAs(t, c.Do(ctx, "", nil, func(context.Context, client.WithWatch) error { return io.ErrUnexpectedEOF }),
			&lost)
		require.True(t, lost.Asked)
		lost = nil
		require.ErrorAs(t,
			c.Do(ctx, "", nil, func(context.Context, client.WithWatch) error { t.Error("it was asked"); return nil }), &lost)
		require.False(t, lost.Asked)
		require.Nil(t, c.Client())
	}
	lose()
	require.Empty(t, changes, "nobody knows yet")
	answers <- http.StatusOK
	again := <-changes
	require.True(t, again.Ready)
	require.Equal(t, up.Outage, again.Outage)
	lose()
	answers <- http.StatusUnauthorized
	down := <-changes
	require.False(t, down.Ready)
	require.Equal(t, kontrol.ReasonUnauthorized, down.Reason)
	require.NotEqual(t, up.Outage, down.Outage)
	answers <- http.StatusOK
	require.True(t, (<-changes).Ready)
}

// uncomparable is a client of an uncomparable type, like the server's.
type uncomparable struct {
	client.WithWatch
	check func() error
}

func TestTheLocalClusterIsReady(t *testing.T) {
	p := NewPool("v1")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	begin := func(f func(context.Context)) { wg.Go(func() { f(ctx) }) }
	for range 2 {
		p.Set("here", Config{Local: uncomparable{check: func() error { return nil }}}, begin)
	}
	require.True(t, p.Get("here").Status().Ready)
	require.Equal(t, "v1", p.Get("here").Status().Version)
	cancel()
	wg.Wait()
}

func TestExplain(t *testing.T) {
	for want, err := range map[string]error{
		"has expired: renew it":     x509.CertificateInvalidError{Reason: x509.Expired, Cert: &x509.Certificate{}},
		"authority in the kubeconf": x509.UnknownAuthorityError{Cert: &x509.Certificate{}},
		"does not answer":           errors.New("no route to host"),
	} {
		_, message := explain(err, "https://a")
		require.Contains(t, message, want)
		require.Contains(t, message, "https://a: ")
		require.LessOrEqual(t, len(message), kontrol.MaxError)
	}
}
