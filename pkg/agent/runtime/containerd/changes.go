package containerd

import (
	"context"
	"maps"
	"slices"
)

// watcher holds the IDs that its reader has not seen: at most one of each
// container, however slow the reader is.
type watcher struct {
	wake chan struct{}
	ids  map[string]struct{}
}

func (r *Runtime) Changes(ctx context.Context) <-chan string {
	w := &watcher{wake: make(chan struct{}, 1), ids: map[string]struct{}{}}
	r.mu.Lock()
	r.watchers[w] = struct{}{}
	r.mu.Unlock()
	out := make(chan string)
	go func() {
		defer close(out)
		defer func() {
			r.mu.Lock()
			delete(r.watchers, w)
			r.mu.Unlock()
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
			r.mu.Lock()
			ids := slices.Collect(maps.Keys(w.ids))
			clear(w.ids)
			r.mu.Unlock()
			for _, id := range ids {
				select {
				case out <- id:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (r *Runtime) changed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		w.ids[id] = struct{}{}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
