package apiserver

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTimeoutParameter(t *testing.T) {
	w := newWorld(t)
	const path = "/api/v1/namespaces"
	for value, text := range map[string]string{
		"invalid": `invalid timeout specified in the request URL - time: invalid duration "invalid"`,
		"30":      `invalid timeout specified in the request URL - time: missing unit in duration "30"`,
	} {
		r := w.do(w.http, "GET", path+"?timeout="+value, "")
		require.Equal(t, 400, r.code, value)
		require.Equal(t, text, r.status(t).Message)
		require.Equal(t, 400, w.do(w.http, "GET", path+"?%74imeout="+value, "").code)
		require.Equal(t, 400, w.do(w.anonymous(), "GET", path+"?timeout="+value, "").code,
			"before authentication, as upstream")
	}
	for _, value := range []string{"0s", "10h", "-1s", "5s", ""} {
		require.Equal(t, 200, w.do(w.http, "GET", path+"?timeout="+value, "").code, value)
	}
	r := w.do(w.http, "GET", path+"?timeout=1ns", "")
	require.Equal(t, 504, r.code)
	s := r.status(t)
	require.Equal(t, metav1.StatusReasonTimeout, s.Reason)
	require.Equal(t, "Timeout: request did not complete within the allotted timeout", s.Message)
	require.Empty(t, r.header.Get("Retry-After"))

	// A watch ignores ?timeout=.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+path+"?watch=true&timeout=1ns", nil)
	require.NoError(t, err)
	res, err := w.http.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
}

func TestTimeoutIsCutToTheBound(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.RequestTimeout = time.Minute })
	for query, want := range map[string]time.Duration{
		"":                 time.Minute,
		"timeout=2m":       time.Minute,
		"timeout=59s":      59 * time.Second,
		"timeoutSeconds=3": time.Minute,
	} {
		req, err := http.NewRequest(http.MethodGet, "/api?"+query, nil)
		require.NoError(t, err)
		got, err := w.srv.allotted(req)
		require.NoError(t, err)
		require.Equal(t, want, got, query)
	}
}

// A request whose body does not arrive times out.
func TestTimeoutEndsTheWaitForABody(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	for _, http2 := range []bool{true, false} {
		c := w.as("admin", "system:masters")
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = http2
		body, never := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/api/v1/namespaces/d/configmaps?timeout=50ms",
			body)
		require.NoError(t, err)
		res, err := c.Do(req)
		require.NoError(t, err)
		require.Equal(t, 504, res.StatusCode)
		require.NoError(t, res.Body.Close())
		require.NoError(t, never.Close())
	}
}
