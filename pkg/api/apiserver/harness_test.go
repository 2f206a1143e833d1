package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/coracle-dev/coracle/pkg/api/admission"
	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	// A closed SPDY connection lingers until its peer, which the test also closed, has finished.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun")) // the audit log's; never ends
}

// authority is a test CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	raw, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert, key, pool}
}

func (a *authority) issue(t testing.TB, name string, groups ...string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	tmpl := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	raw, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

const ringSize = 256

// world is a complete API server on loopback over a real store, cache and registry.
type world struct {
	t    testing.TB
	ca   *authority
	cfg  Config
	srv  *Server
	url  string
	http *http.Client // system:masters
	stop context.CancelFunc
	sign *registry.Tokens

	clients *local.Clients
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		quiet = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	s, err := store.New(store.Config{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	runtest.Start(t, s)
	kinds := kind.NewCatalog(assembled.Kinds())
	c, err := cache.New(cache.Config{Kinds: kinds, Source: s, Logger: quiet, RingSize: ringSize})
	require.NoError(t, err)
	runtest.Start(t, c)
	w := &world{t: t, ca: newAuthority(t)}
	saKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	w.sign, err = registry.NewTokens("https://test", saKey)
	require.NoError(t, err)
	reg, err := registry.New(registry.Config{
		Kinds:     kinds,
		Store:     s,
		Cache:     c,
		Logger:    quiet,
		Tokens:    w.sign,
		Audiences: []string{"https://test"},
	})
	require.NoError(t, err)
	w.clients = local.New(reg, c, kinds)
	require.NoError(t, admission.Install(admission.Plugins{}, reg, w.clients))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.url = "https://" + l.Addr().String()
	w.cfg = Config{
		Registry: reg, Cache: c, Kinds: kinds, Listener: l, Logger: quiet,
		TLS:                &tls.Config{Certificates: []tls.Certificate{w.ca.issue(t, "server")}, ClientCAs: w.ca.pool},
		ServiceAccountKeys: func() []any { return []any{&saKey.PublicKey} }, Issuers: []string{"https://test"},
		Audiences: []string{"https://test"},
		Version:   version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.1+coracle"},
	}
	for _, f := range change {
		f(&w.cfg)
	}
	w.srv, err = New(w.cfg)
	require.NoError(t, err)
	w.stop = runtest.Start(t, w.srv)
	w.http = w.as("admin", "system:masters")
	return w
}

// as returns an HTTP client with a certificate for the user.
func (w *world) as(name string, groups ...string) *http.Client {
	tr := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: w.ca.pool, Certificates: []tls.Certificate{w.ca.issue(w.t, name, groups...)}},
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// anonymous returns an HTTP client without a certificate.
func (w *world) anonymous() *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.ca.pool}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (w *world) clientset(c *http.Client) kubernetes.Interface {
	u, _ := url.Parse(w.url)
	cs, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: u.String(), QPS: -1}, c)
	require.NoError(w.t, err)
	return cs
}

type reply struct {
	code   int
	header http.Header
	body   []byte
}

func (r reply) status(t testing.TB) metav1.Status {
	t.Helper()
	var s metav1.Status
	require.NoError(t, json.Unmarshal(r.body, &s), "%d %s", r.code, r.body)
	require.Equal(t, "Status", s.Kind, "%d %s", r.code, r.body)
	return s
}

func (w *world) do(c *http.Client, method, path, body string, headers ...string) reply {
	w.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, in)
	require.NoError(w.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	require.NoError(w.t, err)
	defer res.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(res.Body)
	require.NoError(w.t, err)
	return reply{res.StatusCode, res.Header, b.Bytes()}
}

func (w *world) namespace(name string) {
	w.t.Helper()
	r := w.do(w.http, "POST", "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+name+`"}}`)
	require.Equal(w.t, 201, r.code, "%s", r.body)
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "hello:1", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}},
		}}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func pems(t testing.TB, c tls.Certificate) (cert, key []byte) {
	raw, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), pem.EncodeToMemory(&pem.Block{
		Type: "PRIVATE KEY", Bytes: raw,
	})
}

func dialAndRead(t testing.TB, address string) string {
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	raw, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(raw)
}
