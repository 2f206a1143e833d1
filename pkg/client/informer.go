package client

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// Follow calls the handler for all objects of a kind and for their changes, until end is called. It returns when the
// handler has seen the existing objects. If ctx ends first, it returns ctx's error, and the handler is not called any
// more.
func Follow(ctx context.Context, c ctrlcache.Cache, object ctrl.Object,
	h toolscache.ResourceEventHandler) (end func(), err error) {
	informer, err := c.GetInformer(ctx, object)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", object, err)
	}
	registration, err := informer.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", object, err)
	}
	end = func() { _ = informer.RemoveEventHandler(registration) }
	select { // WaitForCacheSync would poll every 100 ms
	case <-registration.HasSyncedChecker().Done():
		return end, nil
	case <-ctx.Done():
		end()
		return nil, ctx.Err()
	}
}
