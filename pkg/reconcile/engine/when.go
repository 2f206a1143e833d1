package engine

import (
	"context"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
)

// awaitFirst waits for the first object of the kind When. It returns false if ctx ends before.
func (l *life) awaitFirst(ctx context.Context) bool {
	first := make(chan struct{})
	var once sync.Once
	for pause := crashFirst; ; pause = min(2*pause, crashMost) {
		inf, err := l.client.Cache().GetInformer(ctx, l.r.When)
		if err == nil {
			reg, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { once.Do(func() { close(first) }) }})
			if err == nil {
				select {
				case <-first:
				case <-ctx.Done():
				}
				_ = inf.RemoveEventHandler(reg)
				return ctx.Err() == nil
			}
		}
		if ctx.Err() != nil {
			return false
		}
		l.log.Debug("cannot watch the kind that the reconciler waits for, trying again", "after", pause, "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}
