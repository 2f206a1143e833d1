// Package feed tells watchers which of many things changed, without what became of them.
//
// It may import nothing of Coracle. Its invariant: a watcher holds each name at most once, however slow its reader
// is, and a name told after the reader took it is given again.
package feed

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Feed is usable as its zero value, and by many goroutines.
type Feed struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// watcher holds the names that its reader has not taken.
type watcher struct {
	wake  chan struct{}
	names map[string]struct{}
}

// Watch gives the names that are told from the call on, until ctx ends and the channel is closed.
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

// Tell gives a name to all watchers. It never waits for a reader.
func (f *Feed) Tell(name string) {
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
