package local

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// clientCache implements controller-runtime's cache on the shared cache. When Start returns, it removes the event
// handlers that were added through it.
type clientCache struct {
	*userClient

	mu    sync.Mutex
	ended bool
	regs  map[*registration]struct{}
}

var _ ctrlcache.Cache = (*clientCache)(nil)

// GetInformer returns the informer of an object's kind. It waits until the cache has synced, unless BlockUntilSynced is
// false.
func (c *clientCache) GetInformer(ctx context.Context, obj ctrl.Object,
	opts ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	row, as, err := c.row(obj)
	if err != nil {
		return nil, err
	}
	var o ctrlcache.InformerGetOptions
	for _, f := range opts {
		f(&o)
	}
	if o.BlockUntilSynced == nil || *o.BlockUntilSynced {
		if err := c.cache.WaitFor(ctx, 1); err != nil {
			return nil, err
		}
	}
	return clientInformer{c.informer(row, as), c}, nil
}

func (c *clientCache) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind,
	opts ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	row := c.kinds.Table().ByGVK(gvk)
	if row == nil {
		return nil, noKind(gvk)
	}
	return c.GetInformer(ctx, row.New(), opts...)
}

// RemoveInformer does nothing: the server owns the data.
func (c *clientCache) RemoveInformer(context.Context, ctrl.Object) error { return nil }

// Start blocks until ctx is done. Then it removes the event handlers that were added through this cache.
func (c *clientCache) Start(ctx context.Context) error {
	<-ctx.Done()
	c.mu.Lock()
	c.ended = true
	regs := c.regs
	c.regs = nil
	c.mu.Unlock()
	for r := range regs {
		r.cancel()
	}
	for r := range regs {
		<-r.done
	}
	return nil
}

func (c *clientCache) WaitForCacheSync(ctx context.Context) bool {
	return c.cache.WaitFor(ctx, 1) == nil
}

// IndexField indexes a field for List with an exact field selector. Fields that the kind's field selectors support
// need no index. All clients share indexes, so a name must have the same meaning for all of them.
func (c *clientCache) IndexField(_ context.Context, obj ctrl.Object, field string, values ctrl.IndexerFunc) error {
	row, _, err := c.row(obj)
	if err != nil {
		return err
	}
	if row.StoredAs != nil {
		return fmt.Errorf("%s cannot be indexed: index %s", row.GR(), row.StoredAs.GR())
	}
	if slices.Contains(row.FieldNames, field) {
		return nil
	}
	return c.addIndex(row, fieldIndex(field), values)
}

// clientInformer is the shared informer. Its handlers are removed when the client's cache ends.
type clientInformer struct {
	*informer
	owner *clientCache
}

func (i clientInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration,
	error) {
	return i.AddEventHandlerWithOptions(h, toolscache.HandlerOptions{})
}

func (i clientInformer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler,
	_ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, toolscache.HandlerOptions{})
}

func (i clientInformer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler,
	o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	i.owner.mu.Lock()
	defer i.owner.mu.Unlock()
	if i.owner.ended {
		return nil, fmt.Errorf("the cache has stopped: no more events are delivered")
	}
	reg := i.add(h)
	i.owner.regs[reg] = struct{}{}
	return reg, nil
}

func (i clientInformer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	if reg, ok := handle.(*registration); ok {
		i.owner.mu.Lock()
		delete(i.owner.regs, reg)
		i.owner.mu.Unlock()
	}
	return i.informer.RemoveEventHandler(handle)
}

func (i clientInformer) IsStopped() bool {
	i.owner.mu.Lock()
	defer i.owner.mu.Unlock()
	return i.owner.ended
}
