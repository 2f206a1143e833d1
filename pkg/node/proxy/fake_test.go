package proxy

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// fakeCache delivers objects to handlers, like informers.
type fakeCache struct {
	ctrlcache.Cache
	mu       sync.Mutex
	handlers map[string][]toolscache.ResourceEventHandler
	objects  map[string]ctrl.Object
	events   []*corev1.Event // events written by the proxy
}

type fakeClient struct {
	client.Interface
	cache *fakeCache
}

func (c fakeClient) Cache() ctrlcache.Cache { return c.cache }

func (c fakeClient) Scheme() *kruntime.Scheme { return scheme.Scheme }

func (c fakeClient) Create(_ context.Context, o ctrl.Object, _ ...ctrl.CreateOption) error {
	c.cache.mu.Lock()
	defer c.cache.mu.Unlock()
	if e, ok := o.(*corev1.Event); ok {
		c.cache.events = append(c.cache.events, e)
	}
	return nil
}

func (c *fakeCache) GetInformer(_ context.Context, o ctrl.Object,
	_ ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return &fakeInformer{cache: c, kind: fmt.Sprintf("%T", o)}, nil
}

// deliver reports a change to the handlers: before is nil for a new object, now for a deleted one.
func (c *fakeCache) deliver(before, now ctrl.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects == nil {
		c.objects, c.handlers = map[string]ctrl.Object{}, map[string][]toolscache.ResourceEventHandler{}
	}
	one := now
	if one == nil {
		one = before
	}
	kind := fmt.Sprintf("%T", one)
	key := kind + " " + types.NamespacedName{Namespace: one.GetNamespace(), Name: one.GetName()}.String()
	old := c.objects[key]
	if now == nil {
		delete(c.objects, key)
	} else {
		c.objects[key] = now
	}
	for _, h := range c.handlers[kind] {
		switch {
		case now == nil:
			h.OnDelete(before)
		case old != nil:
			h.OnUpdate(old, now)
		default:
			h.OnAdd(now, false)
		}
	}
}

type fakeInformer struct {
	ctrlcache.Informer
	cache *fakeCache
	kind  string
}

func (i *fakeInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration,
	error) {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	if i.cache.objects == nil {
		i.cache.objects, i.cache.handlers = map[string]ctrl.Object{}, map[string][]toolscache.ResourceEventHandler{}
	}
	i.cache.handlers[i.kind] = append(i.cache.handlers[i.kind], h)
	for key, o := range i.cache.objects {
		if strings.HasPrefix(key, i.kind+" ") {
			h.OnAdd(o, true)
		}
	}
	return synced{}, nil
}

func (i *fakeInformer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	delete(i.cache.handlers, i.kind)
	return nil
}

type synced struct{}

func (synced) HasSynced() bool { return true }

func (synced) HasSyncedChecker() toolscache.DoneChecker { return synced{} }

func (synced) Name() string { return "fake" }

func (synced) Done() <-chan struct{} { c := make(chan struct{}); close(c); return c }
