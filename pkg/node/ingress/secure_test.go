package ingress

import (
	"bufio"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
)

// secureBackend returns a TLS backend and its certificate authorities. Its certificate is for example.com.
func secureBackend(t *testing.T, h http.HandlerFunc) (at netip.AddrPort, authorities []byte) {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String()), pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: s.Certificate().Raw,
	})
}

func (f *front) secure(at netip.AddrPort, authorities []byte, name string) {
	f.t.Helper()
	s, err := f.handler.secured(authorities, name)
	require.NoError(f.t, err)
	f.t.Cleanup(s.close)
	b := &backend{endpoints: []netip.AddrPort{at}, secured: s}
	f.handler.table.Store(build([]*networkingv1.Ingress{ingressOf("i", 0, "- Prefix / b")}, reader{
		backend: func(string, *networkingv1.IngressServiceBackend) (*backend, error) { return b, nil }}))
}

// TestBackendTLS checks that TLS backends get HTTP/2, or HTTP/1.1 for upgrades, and only if their certificate has a
// trusted authority and the right name.
func TestBackendTLS(t *testing.T) {
	at, authorities := secureBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprintf(w, "%s %s", r.Proto, r.Host)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	})
	f := serve(t)
	f.secure(at, authorities, "example.com")
	status, body := f.raw("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "HTTP/2.0 a.example", body)

	c, err := net.Dial("tcp", f.http)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode)
	_, err = io.WriteString(c, "hello")
	require.NoError(t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(r, got)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))

	f.secure(at, authorities, "other.example")
	status, body = f.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	require.Equal(t, http.StatusBadGateway, status, "its certificate is for another name: %s", body)
	require.NotContains(t, body, "example", "what backends have is not for clients")
	_, err = f.handler.secured([]byte("no PEM"), "example.com")
	require.EqualError(t, err, "it has no certificates in PEM format under ca.crt")
}
