package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestProxyable(t *testing.T) {
	for address, ok := range map[string]bool{
		"10.42.0.7": true, "192.0.2.1": true, "2001:db8::1": true,
		"127.0.0.1": false, "169.254.169.254": false, "::1": false, "fe80::1": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "224.0.0.1": false,
		"localhost": false, "metadata.internal": false, "": false,
	} {
		require.Equal(t, ok, proxyable(address) == nil, address)
	}
}

// A port of a node other than its agent's is reached only at an address that is not this host's own.
func TestNodeProxyRefusesLoopback(t *testing.T) {
	a := newAgent(t) // on loopback
	w := newWorld(t, func(c *Config) { c.Nodes = a })
	r := w.do(w.http, "GET", "/api/v1/nodes/n1:2379/proxy/", "")
	require.Equal(t, 400, r.code, "%s", r.body)
	require.Contains(t, r.status(t).Message, "address not allowed")
}

// Who may write endpoints, but not pods' status, cannot point the API server at an address.
func TestServiceProxyReachesPodsOnly(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	cs, ctx := w.clientset(w.http), t.Context()
	_, err := cs.CoreV1().ServiceAccounts("d").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p, err := cs.CoreV1().Pods("d").Create(ctx, podNamed("p"), metav1.CreateOptions{})
	require.NoError(t, err)
	p.Status.PodIP, p.Status.PodIPs = "192.0.2.7", []corev1.PodIP{{IP: "192.0.2.7"}}
	_, err = cs.CoreV1().Pods("d").UpdateStatus(ctx, p, metav1.UpdateOptions{})
	require.NoError(t, err)
	target := func(namespace, name string) *corev1.ObjectReference {
		return &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name}
	}
	for _, c := range []struct {
		name, address string
		target        *corev1.ObjectReference
		allowed       bool
	}{
		{"the pod", "192.0.2.7", target("d", "p"), true},
		{"no target", "192.0.2.7", nil, false},
		{"another address", "192.0.2.8", target("d", "p"), false},
		{"another namespace", "192.0.2.7", target("e", "p"), false},
		{"no such pod", "192.0.2.7", target("d", "q"), false},
		{"metadata", "169.254.169.254", target("d", "p"), false},
	} {
		require.Equal(t, c.allowed, w.srv.podAddress("d", &discoveryv1.Endpoint{Addresses: []string{c.address}, TargetRef: c.target}), c.name)
	}
	p.Status.PodIP, p.Status.PodIPs = "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
	p.ResourceVersion = ""
	_, err = cs.CoreV1().Pods("d").UpdateStatus(ctx, p, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.False(t, w.srv.podAddress("d", &discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}, TargetRef: target("d", "p")}), "a pod that claims loopback")
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
	require.Equal(t, 200, w.do(w.http, "GET", "/api/v1/nodes", "", "Impersonate-User", "x", "Impersonate-Group", "system:masters", "Impersonate-Extra-Scopes", "all").code)
}
