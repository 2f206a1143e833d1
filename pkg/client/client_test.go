package client

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	restclient "k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewNeedsAServersAddress(t *testing.T) {
	_, err := New(Config{REST: &restclient.Config{}})
	require.EqualError(t, err, "client: no API server address: give a kubeconfig")
}

// Known kinds are found, and watched, while no server answers; the watch waits. Other kinds fail at once.
func TestKnownKindsNeedNoServer(t *testing.T) {
	c, err := New(Config{
		REST:  &restclient.Config{Host: "http://127.0.0.1:1"},
		Known: map[ctrl.Object]meta.RESTScope{&corev1.Pod{}: meta.RESTScopeNamespace},
		Only: map[ctrl.Object]ctrlcache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", "node")},
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- c.Run(ctx) }()
	<-c.Ready()
	_, err = c.Cache().GetInformer(ctx, &corev1.Service{})
	require.Error(t, err)
	go func() {
		_, err := Follow(ctx, c.Cache(), &corev1.Pod{}, toolscache.ResourceEventHandlerFuncs{})
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		ended <- err
	}()
	pod, err := c.RESTMapper().RESTMapping(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "v1")
	require.NoError(t, err)
	require.Equal(t, "pods", pod.Resource.Resource)
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
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

type sleepingCache struct {
	ctrlcache.Cache
	wake chan struct{}
}

func (s sleepingCache) WaitForCacheSync(context.Context) bool { return true }
func (s sleepingCache) Start(context.Context) error           { <-s.wake; return nil }

func TestRunDoesNotWaitForSleepingReflectors(t *testing.T) {
	sleeping := sleepingCache{wake: make(chan struct{})}
	defer close(sleeping.wake)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, (&Client{cache: sleeping}).Run(ctx))
}
