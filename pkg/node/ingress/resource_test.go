package ingress

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// resourceOf returns an Ingress whose paths, the names, have resources of the group and kind as backends.
func resourceOf(group, kind string, names ...string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{}
	i.Namespace, i.Name = "ns", "i"
	rule := networkingv1.IngressRule{IngressRuleValue: networkingv1.IngressRuleValue{
		HTTP: &networkingv1.HTTPIngressRuleValue{},
	}}
	for _, name := range names {
		rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{
			Path: "/" + name, PathType: ptr.To(networkingv1.PathTypePrefix), Backend: networkingv1.IngressBackend{
				Resource: &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: kind, Name: name},
			},
		})
	}
	i.Spec.Rules = []networkingv1.IngressRule{rule}
	return i
}

// TestResourcesAsBackends checks that requests reach the handler of the object, and which resources are refused.
func TestResourcesAsBackends(t *testing.T) {
	entered, gone := make(chan struct{}, 1), make(chan error, 1)
	c := &Config{Resources: []Resource{{
		GroupKind: schema.GroupKind{Group: "example.com", Kind: "Program"},
		Handler: func(name types.NamespacedName) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, err := io.ReadAll(r.Body)
				if err != nil {
					http.Error(w, "body", http.StatusBadRequest)
					return
				}
				if name.Name == "slow" {
					entered <- struct{}{}
					<-r.Context().Done()
					gone <- r.Context().Err()
					return
				}
				_, _ = io.WriteString(w, name.String()+" "+r.URL.Path+" "+string(text))
			})
		},
	}}}
	f := serve(t)
	table := func(i *networkingv1.Ingress) []string {
		made := build([]*networkingv1.Ingress{i}, reader{resource: c.resource})
		f.handler.table.Store(made)
		return made.refused[types.NamespacedName{Namespace: "ns", Name: "i"}]
	}
	require.Empty(t, table(resourceOf("example.com", "Program", "p", "slow")))
	res, err := http.Post("http://"+f.http+"/p/x", "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, "ns/p /p/x hello", string(text))

	// The handler learns that the caller has gone.
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.http+"/slow", strings.NewReader("x"))
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	<-entered
	cancel()
	<-ended
	require.ErrorIs(t, <-gone, context.Canceled)
	http.DefaultClient.CloseIdleConnections()

	for _, bad := range [][2]string{{"example.com", "Other"}, {"other.com", "Program"}, {"", "Service"}} {
		refused := table(resourceOf(bad[0], bad[1], "p"))
		require.Len(t, refused, 1)
		require.Contains(t, refused[0], "not supported as backends: use a service, or a resource of kind Program")
		status, _ := f.raw("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
		require.Equal(t, http.StatusServiceUnavailable, status)
	}
	_, err = (&Config{}).resource("ns", &corev1.TypedLocalObjectReference{Kind: "Bucket", Name: "b"})
	require.EqualError(t, err,
		`resources of kind "Bucket" and apiGroup "" are not supported as backends: use a service`)
}
