package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The proxy reaches a node's port other than the agent's only on an address of another host.
func TestNodeProxyRefusesLoopback(t *testing.T) {
	a := newAgent(t) // on loopback
	w := newWorld(t, func(c *Config) { c.Nodes = a })
	r := w.do(w.http, "GET", "/api/v1/nodes/n1:2379/proxy/", "")
	require.Equal(t, 400, r.code, "%s", r.body)
	require.Contains(t, r.status(t).Message, "address not allowed")
}

func TestOnlyGetBelowWatch(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		r := w.do(w.http, method, "/api/v1/watch/namespaces/d/configmaps", "{}")
		require.Equal(t, 405, r.code, method)
		require.Equal(t, metav1.StatusReasonMethodNotAllowed, r.status(t).Reason)
	}
}

func TestImpersonationWithoutAUserIsRefused(t *testing.T) {
	w := newWorld(t)
	r := w.do(w.http, "GET", "/api/v1/nodes", "", "Impersonate-Extra-Scopes", "all")
	require.Equal(t, 400, r.code, "%s", r.body)
	require.Contains(t, r.status(t).Message, "without impersonating a user")
	require.Equal(t, 200,
		w.do(w.http, "GET", "/api/v1/nodes", "", "Impersonate-User", "x", "Impersonate-Group", "system:masters",
			"Impersonate-Extra-Scopes", "all").code)
}
