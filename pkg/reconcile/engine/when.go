package engine

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// awaitKinds waits until the API server has all kinds that the reconciler watches: one of others need not have ours, or not yet. While it
// waits it counts as synced. It returns false if ctx ends before.
func (l *life) awaitKinds(ctx context.Context, synced func()) bool {
	for said := false; l.kinds != nil; {
		all, changed := l.kinds.Stored()
		have := map[schema.GroupKind]bool{}
		for _, k := range all {
			have[k.GroupVersionKind.GroupKind()] = true
		}
		missing := ""
		for _, w := range l.r.Watches {
			if gvk, err := apiutil.GVKForObject(w.Object, l.client.Scheme()); err == nil && !have[gvk.GroupKind()] {
				missing = gvk.GroupKind().String()
			}
		}
		if missing == "" {
			return true
		}
		if !said {
			said = true
			l.log.Info("reconciler waits for a kind that the API server does not have", "kind", missing)
			l.observer.synced.Store(true)
			synced()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

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
		l.log.Debug("could not watch the kind that the reconciler waits for, retrying", "after", pause, "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}
