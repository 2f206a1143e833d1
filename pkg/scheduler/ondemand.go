package scheduler

import (
	"context"
	"sync"
)

// onDemand returns a function that starts watch, once, until ctx ends, and one that tells whether watch has called synced. Both and
// synced are called with the scheduler locked.
func (s *Scheduler) onDemand(ctx context.Context, wg *sync.WaitGroup, what string, watch func(ctx context.Context, synced func()) error) (start func(), synced func() bool) {
	known := false
	start = sync.OnceFunc(func() {
		wg.Go(func() {
			s.guard.Loop(ctx, what, func(ctx context.Context) {
				if err := watch(ctx, func() { known = true }); err != nil && ctx.Err() == nil {
					s.log.Error("could not watch", "what", what, "error", err)
				}
			})
		})
	})
	return start, func() bool { return known }
}
