package commands

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestAbsent checks that the errors for names that do not exist say what to do next.
func TestAbsent(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		resource := schema.GroupResource{Resource: parts[5]}
		name := parts[6]
		if strings.HasPrefix(r.URL.Path, "/apis/") {
			resource = schema.GroupResource{Group: workers.GroupVersion.Group, Resource: parts[6]}
			name = strings.Join(parts[7:], "/")
			name = strings.TrimSuffix(name, "/queue")
		}
		status := apierrors.NewNotFound(resource, name).Status()
		w.WriteHeader(http.StatusNotFound)
		_ = command.PrintAs(w, "json", &status)
	}))
	defer server.Close()
	scheme, err := command.Scheme()
	require.NoError(t, err)
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	c := cluster{&command.Cluster{
		Namespace: "shop", REST: &rest.Config{Host: server.URL},
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(shop).Build(),
	}}
	send := func(target string) error {
		return c.Send(t.Context(), SendOptions{Target: target, Payload: "a"}, nil, io.Discard, io.Discard)
	}
	require.ErrorContains(t, send("service/ecko"), "there is no service ecko in namespace shop: `coracle get workers -A`")
	require.ErrorContains(t, send("pod/a"), "there is no pod a in namespace shop: `coracle get pods -A`")
	queue := func(o QueueOptions) error { return c.Queue(t.Context(), o, io.Discard) }
	require.ErrorContains(t, queue(QueueOptions{Worker: "nosuch", Verb: "list"}),
		"there is no worker nosuch in namespace shop: `coracle get workers -A` lists workers")
	require.EqualError(t, queue(QueueOptions{Worker: "a", Verb: "redrive", ID: "7"}),
		"worker a has no message 7: `coracle queue a list -n shop` lists its messages")
	c.Namespace = "shpo"
	const wrong = "there is no namespace shpo: did you mean shop?"
	require.ErrorContains(t, queue(QueueOptions{Worker: "a", Verb: "list"}), wrong)
	require.ErrorContains(t, send("service/ecko"), wrong)
}
