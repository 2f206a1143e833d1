// Package feed notifies watchers of changed items by name, without their new state.
//
// Its invariant: a watcher queues each name at most once, however slow its reader is. A name that changes after the
// reader received it is queued again.
package feed

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Feed distributes notifications. Its zero value is ready to use, and it is safe for concurrent use.
type Feed struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// watcher queues the names that its reader has not received.
type watcher struct {
	wake  chan struct{}
	names map[string]struct{}
}

// Watch sends the names notified after the call, until ctx is done. Then it closes the channel.
func (f *Feed) Watch(ctx context.Context) <-chan string {
	w := &watcher{wake: make(chan struct{}, 1), names: map[string]struct{}{}}
	f.mu.Lock()
	if f.watchers == nil {
		f.watchers = map[*watcher]struct{}{}
	}
	f.watchers[w] = struct{}{}
	f.mu.Unlock()
	out := make(chan string)
	go func() {
		defer close(out)
		defer func() {
			f.mu.Lock()
			delete(f.watchers, w)
			f.mu.Unlock()
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
			f.mu.Lock()
			names := slices.Collect(maps.Keys(w.names))
			clear(w.names)
			f.mu.Unlock()
			for _, name := range names {
				select {
				case out <- name:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

// Notify queues a name for all watchers. It never blocks on a reader.
func (f *Feed) Notify(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		w.names[name] = struct{}{}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
