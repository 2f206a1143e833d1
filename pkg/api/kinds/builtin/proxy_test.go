package builtin

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

func TestProxyable(t *testing.T) {
	for address, ok := range map[string]bool{
		"10.42.0.7": true, "192.0.2.1": true, "2001:db8::1": true,
		"127.0.0.1": false, "169.254.169.254": false, "::1": false, "fe80::1": false, "::ffff:127.0.0.1": false,
		"0.0.0.0": false, "224.0.0.1": false,
		"localhost": false, "metadata.internal": false, "": false,
	} {
		require.Equal(t, ok, proxyable(address) == nil, address)
	}
}

// podReader is a connection to a server with one pod, d/p.
type podReader struct {
	kind.Connection
	pod *corev1.Pod
}

func (r podReader) Read(gvk schema.GroupVersionKind, namespace, name string) client.Object {
	if gvk == corev1.SchemeGroupVersion.WithKind("Pod") && namespace == "d" && name == "p" {
		return r.pod
	}
	return nil
}

// A user who may write endpoints but not pod status cannot direct the API server to an arbitrary address.
func TestServiceProxyReachesPodsOnly(t *testing.T) {
	on := podReader{pod: &corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.7"}}}}}
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
		require.Equal(t, c.allowed,
			podAddress(on, "d", &discoveryv1.Endpoint{Addresses: []string{c.address}, TargetRef: c.target}), c.name)
	}
	on.pod.Status.PodIPs = []corev1.PodIP{{IP: "127.0.0.1"}}
	require.False(t,
		podAddress(on, "d", &discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}, TargetRef: target("d", "p")}),
		"a pod that claims loopback")
}

func (podReader) Path() []string { return []string{"api", "v1", "pods"} }

// A managed cluster that answers with a redirect would make the client repeat its request, such as a delete, on the
// server that forwards, with the client's credentials for it.
func TestForwardPassesOnNoRedirects(t *testing.T) {
	there := httptest.NewServer(http.RedirectHandler("/api/v1/namespaces/prod/secrets/s", http.StatusTemporaryRedirect))
	defer there.Close()
	location, err := url.Parse(there.URL)
	require.NoError(t, err)
	req, answer := httptest.NewRequest(http.MethodDelete, "/", nil), httptest.NewRecorder()
	Forward(req, podReader{}, location, http.DefaultTransport).ServeHTTP(answer, req)
	require.Equal(t, http.StatusBadGateway, answer.Code)
	require.Empty(t, answer.Header().Get("Location"))
}
