package server

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/client/servers"
)

func TestServerHosts(t *testing.T) {
	require.Equal(t, []string{"server:6443", "[2001:db8::1]:6443", "api.example.org:443"},
		serverHosts([]string{"https://server:6443", "https://[2001:db8::1]:6443/", "https://api.example.org"}))
}

// TestTheListOfServersComesFromTheAPI checks that only the EndpointSlice default/kubernetes is used.
func TestTheListOfServersComesFromTheAPI(t *testing.T) {
	list, err := servers.New(servers.Config{
		Seeds: []string{"server:6443"},
		Dial:  (&net.Dialer{}).DialContext,
		Log:   slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	f := &serverFollower{list: list}
	yes, no, port := true, false, int32(6443)
	slice := func(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
			Ports:      []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
				{Addresses: []string{"192.0.2.2", "no address"}},
				{Addresses: []string{"192.0.2.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}},
			},
		}
		change(s)
		return s
	}
	for name, change := range map[string]func(*discoveryv1.EndpointSlice){
		"other name":           func(s *discoveryv1.EndpointSlice) { s.Name = "kubernetes-x" },
		"other namespace":      func(s *discoveryv1.EndpointSlice) { s.Namespace = "tenant" },
		"without a port":       func(s *discoveryv1.EndpointSlice) { s.Ports = nil },
		"with a negative port": func(s *discoveryv1.EndpointSlice) { bad := int32(-1); s.Ports[0].Port = &bad },
		"without endpoints":    func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil },
	} {
		f.seen(slice(change))
		require.Equal(t, []string{"server:6443"}, list.Addresses(), name)
	}
	f.seen(slice(func(*discoveryv1.EndpointSlice) {}))
	require.ElementsMatch(t, []string{"192.0.2.1:6443", "192.0.2.2:6443", "server:6443"}, list.Addresses())
}

// TestAnAgentFollowsTheOtherServer checks that a machine joins through one of two servers and fails over to the
// other with the same certificate. It sends no request to a listed server of another cluster.
func TestAnAgentFollowsTheOtherServer(t *testing.T) {
	c := newCluster(t)
	ask := make(chan string, 10)
	server := func(c *testCluster, name, address string) *httptest.Server {
		j := c.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ask <- name + " " + r.TLS.PeerCertificates[0].Subject.CommonName
			_, _ = io.WriteString(w, name)
		}))
		s := httptest.NewUnstartedServer(j)
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		require.NoError(t, err)
		require.NoError(t, s.Listener.Close())
		config := c.tls(t)
		s.Listener, s.EnableHTTP2 = listener, true
		s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config, nil }}
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	a, b := server(c, "a", "127.0.0.1:0"), server(c, "b", "127.0.0.1:0")
	foreign := server(newCluster(t), "foreign", "127.0.0.1:0")
	i := c.machine(t, a.URL, t.TempDir(), "n1")
	require.NoError(t, i.enter(t.Context()))
	var list []netip.AddrPort
	for _, s := range []*httptest.Server{a, b, foreign} {
		list = append(list, netip.MustParseAddrPort(s.Listener.Addr().String()))
	}
	i.servers.Set(list)
	get := func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://cluster/api", nil)
		require.NoError(t, err)
		answer, err := i.RoundTrip(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "a", get())
	a.CloseClientConnections()
	a.Close()
	require.Equal(t, "b", get())
	require.Equal(t, "b", get(), "it does not fail back")
	c.register(t, i)
	require.NoError(t, i.renew(t.Context(), i.present.Load().credentials), "renewals fail over too")
	require.Equal(t, []string{"a system:node:n1", "b system:node:n1", "b system:node:n1"}, []string{<-ask, <-ask, <-ask})
	require.Empty(t, ask)
	require.True(t, slices.Contains(i.servers.Addresses(), foreign.Listener.Addr().String()))
	i.present.Load().transport.CloseIdleConnections()
}
