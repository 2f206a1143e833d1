package probe

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestHostsOfProbes(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer web.Close()
	host, port, err := net.SplitHostPort(web.Listener.Addr().String())
	require.NoError(t, err)
	guarded, open := &Manager{client: NewClient(Guard{})}, &Manager{client: NewClient(Guard{Any: true})}
	defer guarded.client.CloseIdleConnections()
	defer open.client.CloseIdleConnections()
	inside := Target{PodIP: host, Container: &corev1.Container{}}
	onHost := inside
	onHost.HostNetwork = true
	for _, name := range []string{host, "localhost", "0.0.0.0", "::ffff:127.0.0.1", "127.0.0.1"} {
		for _, h := range []corev1.ProbeHandler{
			{HTTPGet: &corev1.HTTPGetAction{Host: name, Port: intstr.Parse(port)}},
			{TCPSocket: &corev1.TCPSocketAction{Host: name, Port: intstr.Parse(port)}},
		} {
			p := &corev1.Probe{ProbeHandler: h, TimeoutSeconds: 60}
			_, err := guarded.do(t.Context(), p, inside)
			require.ErrorContains(t, err, "is the machine's own", name)
			_, err = guarded.do(t.Context(), p, onHost)
			require.NoError(t, err, "kubeadm's static pods name 127.0.0.1")
			_, err = open.do(t.Context(), p, inside)
			require.NoError(t, err)
		}
	}
	_, err = guarded.do(t.Context(), &corev1.Probe{TimeoutSeconds: 60, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Port: intstr.Parse(port)}}}, inside)
	require.NoError(t, err, "the pod itself")
}

func TestGuard(t *testing.T) {
	own := ""
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			own = p.Addr().String()
		}
	}
	g := Guard{Ports: []uint16{6443}}
	for address, refused := range map[string]bool{
		"127.0.0.53:53": true, "[::1]:80": true, "0.0.0.0:80": true, "[::]:80": true, "169.254.169.254:80": true,
		"[fe80::1%eth0]:80": true, "[fd00:ec2::254]:80": true, "[::ffff:169.254.169.254]:80": true,
		"198.51.100.1:6443": false, "10.42.0.5:80": false, own + ":6443": true, own + ":80": false,
	} {
		if own == "" && address[0] == ':' {
			continue // a machine without a network
		}
		require.Equal(t, refused, g.control("tcp", address, nil) != nil, address)
	}
}
