package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/client/servers"
)

// testCluster is a server that machines can join. The test sets its Nodes.
type testCluster struct {
	keys  *pki.Set
	nodes map[string]*corev1.Node
	token jointoken.Token
	*joiner
}

func newCluster(t *testing.T) *testCluster {
	t.Helper()
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	token, err := jointoken.New(keys.Server.Bundle())
	require.NoError(t, err)
	c := &testCluster{keys: keys, nodes: map[string]*corev1.Node{}, token: token}
	c.joiner = &joiner{
		keys: keys, cluster: joinAnswer{ClusterDomain: "cluster.local"}, own: func() string { return "own" },
		members: newMembers(nil, nil),
		token: func(_ context.Context, text string) error {
			if text != c.token.String() {
				return jointoken.ErrRefused
			}
			return nil
		},
		node: func(_ context.Context, name string) (*corev1.Node, error) { return c.nodes[name], nil },
	}
	return c
}

func (c *testCluster) tls(t *testing.T) *tls.Config {
	t.Helper()
	serving, err := c.keys.Server.NewSource(pki.Leaf{Name: "coracle", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	return &tls.Config{GetCertificate: serving.Server, ClientCAs: c.keys.Client.Pool(), ClientAuth: tls.RequestClientCert}
}

func (c *testCluster) serve(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	config := c.tls(t)
	// With Certificates set, httptest would add its own certificate.
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config, nil }}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func (c *testCluster) machine(t *testing.T, url, dir, name string) *identity {
	t.Helper()
	key, err := pki.LoadKey(filepath.Join(dir, "machine.key"))
	require.NoError(t, err)
	list, err := servers.New(servers.Config{
		Seeds:  serverHosts([]string{url}),
		Client: name,
		Dial:   (&net.Dialer{}).DialContext,
		Log:    slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return &identity{
		servers: list, token: c.token.String(), nodeName: name, nodeIP: "192.0.2.7", dir: dir, key: key,
		log:     slog.New(slog.DiscardHandler),
		refused: make(chan struct{}, 1), changed: make(chan struct{}, 1), excluded: func(context.Context) {},
	}
}

func (c *testCluster) register(t *testing.T, i *identity) {
	t.Helper()
	machine, err := pki.Identity(i.key.Public())
	require.NoError(t, err)
	c.nodes[i.nodeName] = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: i.nodeName, Annotations: map[string]string{machineAnnotation: machine}},
	}
	c.members.seen(c.nodes[i.nodeName])
}

func (c *testCluster) remove(name string) {
	delete(c.nodes, name)
	c.members.end(name, func(*request) bool { return true })
}

// believes returns the result of the API's check of a machine's certificate.
func (c *testCluster) believes(t *testing.T, i *identity) error {
	t.Helper()
	return c.members.check(i.nodeName, c.nodes[i.nodeName], certificate(t, i.present.Load().Client))
}

func certificate(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}
