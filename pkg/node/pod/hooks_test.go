package pod

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-dev/coracle/pkg/node/pod/probe"
)

func TestHTTPHook(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	host, port, err := net.SplitHostPort(web.Listener.Addr().String())
	require.NoError(t, err)
	m, p := &Manager{probing: probe.NewClient(probe.Guard{})}, &corev1.Pod{}
	defer m.probing.CloseIdleConnections()
	hook := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Host: host, Port: intstr.Parse(port)}}
	require.ErrorContains(t, m.hook(t.Context(), p, hook, &corev1.Container{}, "c", ""), "is the machine's own")
	p.Spec.HostNetwork = true
	require.NoError(t, m.hook(t.Context(), p, hook, &corev1.Container{}, "c", ""))
	web.Close()
	require.Error(t, m.hook(t.Context(), p, hook, &corev1.Container{}, "c", ""))
}
