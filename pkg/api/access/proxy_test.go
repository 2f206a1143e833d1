package access

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

func TestAProxySaysWhoAUserIs(t *testing.T) {
	authority, err := pki.LoadFrontProxy(t.TempDir())
	require.NoError(t, err)
	other, err := pki.LoadFrontProxy(t.TempDir())
	require.NoError(t, err)
	path := write(t, filepath.Join(t.TempDir(), "ca"), string(authority.Bundle()))
	a := start(t, Config{
		Proxy: Proxy{
			CAFile: path, Names: []string{"gate"}, NameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
			GroupHeaders: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"},
		},
	})
	request := func(from *pki.Authority, name string) *http.Request {
		text, _, err := from.Issue(pki.Leaf{Name: name})
		require.NoError(t, err)
		block, _ := pem.Decode(text)
		leaf, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/api", nil)
		require.NoError(t, err)
		req.Header = http.Header{
			"X-Remote-User":       {"jane"},
			"X-Remote-Uid":        {"u1"},
			"X-Remote-Group":      {"a", "b"},
			"X-Remote-Extra-Team": {"blue"},
		}
		req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
		return req
	}
	good := request(authority, "gate")
	res, ok, err := a.AuthenticateRequest(good)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "jane", res.User.GetName())
	require.Equal(t, "u1", res.User.GetUID())
	require.Equal(t, []string{"a", "b"}, res.User.GetGroups())
	require.Equal(t, map[string][]string{"team": {"blue"}}, res.User.GetExtra())
	require.Empty(t, good.Header, "the headers are not passed on")
	for name, req := range map[string]*http.Request{
		"another name": request(authority, "someone"), "another authority": request(other, "gate"),
	} {
		_, ok, err := a.AuthenticateRequest(req)
		require.False(t, ok, name)
		require.Error(t, err, name)
	}
	plain := request(authority, "gate")
	plain.TLS = nil
	_, ok, err = a.AuthenticateRequest(plain)
	require.False(t, ok, "without a certificate")
	require.NoError(t, err)

	_, err = New(Config{
		Proxy: Proxy{CAFile: path, NameHeaders: []string{"X-Remote-User"}, Clients: func() []*x509.Certificate {
			present, _ := authority.Certificates()
			return []*x509.Certificate{present}
		}}, Log: slog.New(slog.DiscardHandler),
	})
	require.ErrorContains(t, err, "set requestheader-allowed-names", "each of its clients could be anybody")

	write(t, path, string(other.Bundle()))
	require.Eventually(t, func() bool {
		_, ok, _ = a.AuthenticateRequest(request(other, "gate"))
		return ok
	}, 2*time.Minute, time.Millisecond)
	_, ok, _ = a.AuthenticateRequest(request(authority, "gate"))
	require.False(t, ok, "whose authority was replaced")
}
