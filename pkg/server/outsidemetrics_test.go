package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// TestMetricsThroughTheAPIServer checks what controllers apart from the API server read for autoscalers. An API group
// that is not served gives another error than a missing metric.
func TestMetricsThroughTheAPIServer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/api/v1/nodes/n1/proxy/metrics/resource":
			_, _ = w.Write([]byte("x 1\n"))
		case "/apis/custom.metrics.k8s.io/v1beta2/a":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	r, err := newReader(&rest.Config{Host: s.URL})
	require.NoError(t, err)
	text, err := r.node(t.Context(), "n1")
	require.NoError(t, err)
	require.Equal(t, "x 1\n", string(text))
	_, err = r.get(t.Context(), "/apis/custom.metrics.k8s.io/v1beta1/a", nil)
	require.ErrorIs(t, err, aggregated.ErrNotServed)
	_, err = r.get(t.Context(), "/apis/custom.metrics.k8s.io/v1beta2/a", nil)
	require.NotErrorIs(t, err, aggregated.ErrNotServed)
	require.ErrorContains(t, err, "404")
}
