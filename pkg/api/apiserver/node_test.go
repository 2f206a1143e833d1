package apiserver

import (
	"crypto/x509"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// A node's certificate is trusted only while CheckNode accepts it, also on an open connection.
func TestCheckNode(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.CheckNode = func(name string, n *corev1.Node, cert *x509.Certificate) error {
			if n == nil {
				require.Equal(t, "n1", name)
				return nil
			}
			if owner := n.Annotations["owner"]; owner != "" && owner != cert.SerialNumber.String() {
				return errors.New("another machine's")
			}
			return nil
		}
	})
	node := w.as("system:node:n1", "system:nodes")
	other := w.as("system:node:n1", "system:nodes")
	get := func(c *http.Client) int { return w.do(c, "GET", "/api/v1/nodes/n1", "").code }
	own := func(c *http.Client) string {
		cert, err := x509.ParseCertificate(c.Transport.(*http.Transport).TLSClientConfig.Certificates[0].Certificate[0])
		require.NoError(t, err)
		return cert.SerialNumber.String()
	}
	require.Equal(t, 404, get(node), "a name without a Node is anybody's who has a certificate for it")
	require.Equal(t, 404, get(other))
	require.Equal(t, 201,
		w.do(node, "POST", "/api/v1/nodes", `{"metadata":{"name":"n1","annotations":{"owner":"`+own(node)+`"}}}`).code)
	require.Equal(t, 200, get(node))
	require.Equal(t, 401, get(other))
	require.Equal(t, 200, get(w.http), "who is no node is not asked for")
	require.Equal(t, 200, w.do(w.http, "DELETE", "/api/v1/nodes/n1", "").code)
	require.Equal(t, 201,
		w.do(other, "POST", "/api/v1/nodes", `{"metadata":{"name":"n1","annotations":{"owner":"`+own(other)+`"}}}`).code)
	require.Equal(t, 401, get(node))
	require.Equal(t, 200, get(other))
}
