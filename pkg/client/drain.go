package client

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// newInformer is client-go's informer whose watches are drained when stopped. Otherwise controller-runtime's filter of
// metadata watches blocks forever on its last event.
func newInformer(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration,
	indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(drained{toolscache.ToListerWatcherWithContext(lw)}, obj, resync, indexers)
}

type drained struct {
	toolscache.ListerWatcherWithContext
}

func (d drained) List(o metav1.ListOptions) (runtime.Object, error) {
	return d.ListWithContext(context.Background(), o)
}

func (d drained) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return d.WatchWithContext(context.Background(), o)
}

func (d drained) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := d.ListerWatcherWithContext.WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	return drainedWatch{w}, nil
}

type drainedWatch struct{ watch.Interface }

// Stop may be called more than once.
func (w drainedWatch) Stop() {
	w.Interface.Stop()
	go func() {
		for range w.ResultChan() {
		}
	}()
}
