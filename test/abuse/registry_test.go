package abuse

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serve runs an HTTP server on loopback in the cluster's network namespace and returns its port.
func (c *cluster) serve(t *testing.T, handler http.HandlerFunc) int {
	t.Helper()
	l, err := c.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &http.Server{Handler: handler} //nolint:gosec // the test sets no timeouts
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	return l.Addr().(*net.TCPAddr).Port
}

// pulls creates a pod with an image and waits for the node's message about it.
func (c *cluster) pulls(t *testing.T, name, ref string, change ...func(*corev1.Pod)) string {
	t.Helper()
	c.pod(t, name, "echo hello", append(change, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = ref, corev1.PullAlways
	})...)
	pod := c.until(t, name, "refused", func(pod *corev1.Pod) bool { return ended(pod) || waiting(pod) != "" })
	require.False(t, pod.Status.Phase == corev1.PodSucceeded, "the pod ran")
	return waiting(pod)
}

// A registry responds with an endless manifest, with one of gigabytes, and with an invalid one.
func lyingRegistry(t *testing.T, c *cluster) {
	answers := map[string]http.HandlerFunc{
		"endless": func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			if req.Method == http.MethodHead {
				w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("a", 64))
				w.Header().Set("Content-Length", "1000")
				return
			}
			chunk := []byte(strings.Repeat(" ", 64<<10))
			for req.Context().Err() == nil {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
		"huge": func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("a", 64))
			w.Header().Set("Content-Length", fmt.Sprint(int64(8)<<30))
			chunk := []byte(strings.Repeat(" ", 64<<10))
			if req.Method == http.MethodHead {
				return
			}
			for req.Context().Err() == nil {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
		"garbage": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) },
		"circle": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, req.URL.Path, http.StatusTemporaryRedirect)
		},
	}
	for name, answer := range answers {
		port := c.serve(t, answer)
		said := c.pulls(t, "lies-"+name, fmt.Sprintf("127.0.0.1:%d/lies/%s:1", port, name))
		t.Logf("told: %s: %s", name, said)
		require.Contains(t, said, "Pull")
	}
}

// A tenant's image pull secret is for one registry. Another registry asks for credentials and must get none.
func foreignRegistry(t *testing.T, c *cluster) {
	var asked, given atomic.Int64
	port := c.serve(t, func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		if req.Header.Get("Authorization") != "" {
			given.Add(1)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="give me all"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	secret := base64.StdEncoding.EncodeToString([]byte("user:secret"))
	_, err := c.tenant.CoreV1().Secrets(tenantNamespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{
			corev1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example.com":{"auth":"` + secret + `"}}}`),
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	said := c.pulls(t, "foreign", fmt.Sprintf("127.0.0.1:%d/other/image:1", port), func(pod *corev1.Pod) {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	})
	t.Logf("told: %s", said)
	require.Positive(t, asked.Load())
	require.Zero(t, given.Load(), "credentials were sent to another registry")
}
