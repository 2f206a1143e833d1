package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/clienttest"
)

// The HTTP client passes the same suite as the in-process client.
func TestHTTPClientConforms(t *testing.T) {
	w := newWorld(t)
	w.namespace("work")
	c, err := client.New(client.Config{REST: &rest.Config{Host: w.url, Transport: w.http.Transport}, ReadOwnWrites: true})
	require.NoError(t, err)
	runtest.Start(t, c)
	clienttest.Run(t, c, "work")
}
