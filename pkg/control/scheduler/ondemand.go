package scheduler

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// onDemand returns a function that starts watch on its first call, until ctx ends, and one that reports whether
// watch has called synced. These two functions and synced are called with the lock held. A failed watch is restarted
// after a back-off of a second to a minute.
func (s *Scheduler) onDemand(ctx context.Context, wg *sync.WaitGroup, what string,
	watch func(ctx context.Context, synced func()) error) (start func(), synced func() bool) {
	known := false
	start = sync.OnceFunc(func() {
		wg.Go(func() {
			s.guard.Loop(ctx, what, func(ctx context.Context) {
				pause := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 7, Cap: time.Minute}
				_ = pause.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (done bool, err error) {
					if err := watch(ctx, func() { known = true }); err != nil && ctx.Err() == nil {
						s.log.Error("could not watch, retrying", "what", what, "error", err)
					}
					return false, nil // until ctx ends
				})
			})
		})
	})
	return start, func() bool { return known }
}

// follow passes a kind's events to a handler until ctx ends. After the initial ones it calls synced, with the lock.
func (s *Scheduler) follow(ctx context.Context, kind ctrlclient.Object, handler toolscache.ResourceEventHandler,
	synced func()) error {
	end, err := client.Follow(ctx, s.client.Cache(), kind, handler)
	if err != nil {
		return s.stopped(ctx, err)
	}
	defer end()
	s.mu.Lock()
	synced()
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}
