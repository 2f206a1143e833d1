package local

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// informerKey identifies an informer. A kind that is removed and added again gets a new one.
type informerKey struct {
	storage *kind.Storage
	gvk     schema.GroupVersionKind
	form    form
}

// maxUnheld limits the informers and indexes that are kept for removed kinds.
const maxUnheld = 64

// informer is client-go's shared informer of a kind, on the shared cache: it stores no objects. Each handler has a
// goroutine with its own watcher, so a slow handler does not delay others.
type informer struct {
	*Clients
	row  *kind.Resource
	key  informerKey
	view viewFunc
	name string

	mu       sync.Mutex
	indexers toolscache.Indexers
	regs     map[*registration]struct{}
}

var _ toolscache.SharedIndexInformer = (*informer)(nil)

// informer returns the informer of a kind and creates it if necessary.
func (s *Clients) informer(row *kind.Resource, as form) *informer {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := informerKey{row.Storage, row.GroupVersionKind, as}
	i := s.informers[k]
	if i == nil {
		i = &informer{Clients: s, row: row, key: k, view: s.view(row, as), name: row.GR().String(),
			indexers: toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc},
			regs:     map[*registration]struct{}{}}
		if t := s.kinds.Table(); len(s.informers) > 4*len(t.All())+maxUnheld {
			maps.DeleteFunc(s.informers, func(k informerKey, _ *informer) bool { return !t.Holds(k.storage) })
		}
		s.informers[k] = i
	}
	return i
}

// loaded reports whether the cache has synced.
func (i *informer) loaded() bool { return i.cache.Revision() > 0 }

func (i *informer) HasSynced() bool                                         { return i.loaded() }
func (i *informer) LastSyncResourceVersion() string                         { return version(i.cache.Revision()) }
func (i *informer) GetStore() toolscache.Store                              { return indexer{i} }
func (i *informer) GetIndexer() toolscache.Indexer                          { return indexer{i} }
func (i *informer) GetController() toolscache.Controller                    { return i }
func (i *informer) IsStopped() bool                                         { return false }
func (i *informer) SetWatchErrorHandler(toolscache.WatchErrorHandler) error { return nil }
func (i *informer) SetWatchErrorHandlerWithContext(toolscache.WatchErrorHandlerWithContext) error {
	return nil
}

func (i *informer) HasSyncedChecker() toolscache.DoneChecker {
	return synced{i.name, i.cache.Ready()}
}

// SetTransform always fails: the objects are shared.
func (i *informer) SetTransform(toolscache.TransformFunc) error {
	return errors.New("objects of the shared cache cannot be transformed")
}

// AddIndexers adds indexes for the indexer's ByIndex. As in client-go, their names must be new.
func (i *informer) AddIndexers(add toolscache.Indexers) error { return indexer{i}.AddIndexers(add) }

// Run only blocks until stop: the server maintains the cache.
func (i *informer) Run(stop <-chan struct{})           { <-stop }
func (i *informer) RunWithContext(ctx context.Context) { <-ctx.Done() }

type synced struct {
	name string
	done <-chan struct{}
}

func (s synced) Name() string          { return s.name }
func (s synced) Done() <-chan struct{} { return s.done }

func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration,
	error) {
	return i.add(h), nil
}

func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler,
	_ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(h), nil
}

func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler,
	_ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(h), nil
}

// RemoveEventHandler removes a handler. A call in progress may still finish.
func (i *informer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	if reg, ok := handle.(*registration); ok {
		reg.cancel()
	}
	return nil
}

// registration runs one event handler.
type registration struct {
	i      *informer
	h      toolscache.ResourceEventHandler
	cancel context.CancelFunc
	synced chan struct{} // closed after the initial objects
	done   chan struct{}
}

// add starts a handler, which runs until RemoveEventHandler or the end of the cache.
func (i *informer) add(h toolscache.ResourceEventHandler) *registration {
	ctx, cancel := context.WithCancel(context.Background())
	g := &registration{i: i, h: h, cancel: cancel, synced: make(chan struct{}), done: make(chan struct{})}
	go g.run(ctx)
	return g
}

// HasSynced reports whether the handler has handled the initial objects.
func (g *registration) HasSynced() bool {
	select {
	case <-g.synced:
		return true
	default:
		return false
	}
}

func (g *registration) HasSyncedChecker() toolscache.DoneChecker {
	return synced{g.i.name + " handler", g.synced}
}

// run delivers events until the handler is removed or the cache stops.
func (g *registration) run(ctx context.Context) {
	defer close(g.done)
	defer g.cancel()
	if g.i.cache.WaitFor(ctx, 1) != nil {
		return
	}
	w, initial, err := g.i.cache.Follow(stored(g.i.row))
	if err != nil {
		return
	}
	defer w.Close()
	for _, e := range initial {
		if ctx.Err() != nil {
			return
		}
		g.deliver(cache.Event{Type: string(watch.Added), Entry: e}, true)
	}
	close(g.synced)
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return
		}
		for _, e := range events {
			if ctx.Err() != nil {
				return
			}
			g.deliver(e, false)
		}
	}
}

// deliver delivers an event. It skips objects that cannot be converted to the informer's form.
func (g *registration) deliver(e cache.Event, initial bool) {
	obj, err := g.i.view.of(e.Entry)
	if err != nil {
		return
	}
	switch watch.EventType(e.Type) {
	case watch.Added:
		g.h.OnAdd(obj, initial)
	case watch.Modified:
		if before, err := g.i.view.of(e.Prev); err == nil {
			g.h.OnUpdate(before, obj)
		}
	case watch.Deleted:
		if e.Merged {
			g.h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: ctrl.ObjectKeyFromObject(obj).String(), Obj: obj})
			return
		}
		g.h.OnDelete(obj)
	}
}
