package remote

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPlainToTLS checks the error of a plain connection to a TLS server.
func TestPlainToTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	c, err := New(Config{Address: s.Listener.Addr().String()})
	require.NoError(t, err)
	defer c.Close()
	err = Smoke{Timeout: time.Minute}.Run(t.Context(), c, func(Step) {})
	require.ErrorContains(t, err, "if it uses TLS, give its authority with --ca")
	_, err = New(Config{Address: "localhost:1", Token: "secret"})
	require.EqualError(t, err, "a token needs TLS, because anyone on the network could read it")
}
