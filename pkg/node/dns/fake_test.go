package dns

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

type fakeClient struct{ client.Interface }

func (fakeClient) Cache() ctrlcache.Cache { return fakeCache{} }

type fakeCache struct{ ctrlcache.Cache }

func (fakeCache) GetInformer(_ context.Context, o ctrl.Object,
	_ ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return fakeInformer{kind: o}, nil
}

type fakeInformer struct {
	ctrlcache.Informer
	kind ctrl.Object
}

func (i fakeInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration,
	error) {
	if _, ok := i.kind.(*corev1.Service); ok {
		h.OnAdd(testService("default", "web", "10.43.0.5"), true)
		h.OnAdd(testService("default", "out", "", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "www.example.org"
		}), true)
	}
	return synced{}, nil
}

func (fakeInformer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error { return nil }

type synced struct{}

func (synced) HasSynced() bool                          { return true }
func (synced) HasSyncedChecker() toolscache.DoneChecker { return synced{} }
func (synced) Name() string                             { return "fake" }
func (synced) Done() <-chan struct{}                    { c := make(chan struct{}); close(c); return c }
