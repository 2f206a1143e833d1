package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/coracle-dev/coracle/pkg/kind/builtin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSchemeKnowsEveryKind(t *testing.T) {
	for _, r := range builtin.Kinds().All() {
		gvk, err := apiutil.GVKForObject(r.New(), Scheme())
		require.NoError(t, err, r.Kind)
		require.Equal(t, r.GroupVersionKind, gvk)
		require.True(t, Scheme().Recognizes(gvk.GroupVersion().WithKind(r.Kind+"List")))
	}
}

func TestNewNeedsAServersAddress(t *testing.T) {
	_, err := New(Config{REST: &restclient.Config{}})
	require.EqualError(t, err, "client: no API server address: give a kubeconfig")
}

// New and Run send no requests until a kind is used; Run returns when its context is done.
func TestRunWithoutWork(t *testing.T) {
	c, err := New(Config{REST: &restclient.Config{Host: "http://127.0.0.1:1"}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	<-c.Ready()
	cancel()
	require.NoError(t, <-ended)
}
