package registry

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/kind"
)

type informerKey struct {
	row     *kind.Resource
	partial bool
}

// informer is client-go's shared informer of one kind over the shared cache: it holds no object of its own. Each
// handler has a goroutine that reads a watcher of the cache, so a slow one holds up nobody.
type informer struct {
	*shared
	key  informerKey
	view viewFunc
	name string

	mu       sync.Mutex
	indexers toolscache.Indexers
	regs     map[*registration]struct{}
}

var _ toolscache.SharedIndexInformer = (*informer)(nil)

// informer finds or makes the informer of a kind.
func (s *shared) informer(row *kind.Resource, partial bool) *informer {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := informerKey{row, partial}
	i := s.informers[k]
	if i == nil {
		i = &informer{shared: s, key: k, view: s.view(row, partial), name: row.GR().String(),
			indexers: toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc},
			regs:     map[*registration]struct{}{}}
		s.informers[k] = i
	}
	return i
}

// newFactory is client-go's factory, in which the informers of our kinds are ours. It has no client: an informer of
// another kind, if started, would fail.
func (s *shared) newFactory() informers.SharedInformerFactory {
	f := informers.NewSharedInformerFactory(nil, 0)
	for _, r := range s.kinds.All() {
		if r.Proto {
			f.InformerFor(r.New(), func(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer { return s.informer(r, false) })
		}
	}
	return f
}

// loaded tells whether the cache holds the store's state.
func (i *informer) loaded() bool { return i.table.Revision() > 0 }

func (i *informer) HasSynced() bool                                         { return i.loaded() }
func (i *informer) LastSyncResourceVersion() string                         { return version(i.table.Revision()) }
func (i *informer) GetStore() toolscache.Store                              { return indexer{i} }
func (i *informer) GetIndexer() toolscache.Indexer                          { return indexer{i} }
func (i *informer) GetController() toolscache.Controller                    { return i }
func (i *informer) IsStopped() bool                                         { return false }
func (i *informer) SetWatchErrorHandler(toolscache.WatchErrorHandler) error { return nil }
func (i *informer) SetWatchErrorHandlerWithContext(toolscache.WatchErrorHandlerWithContext) error {
	return nil
}

// HasSyncedChecker is done once the cache is loaded.
func (i *informer) HasSyncedChecker() toolscache.DoneChecker {
	return synced{i.name, i.table.Ready()}
}

// SetTransform is refused: the objects are everyone's.
func (i *informer) SetTransform(toolscache.TransformFunc) error {
	return errors.New("objects of the shared cache cannot be transformed")
}

// AddIndexers adds indexes for the indexer's ByIndex; names must be new, as in client-go.
func (i *informer) AddIndexers(add toolscache.Indexers) error { return indexer{i}.AddIndexers(add) }

// Run only waits: the cache is kept by the server.
func (i *informer) Run(stop <-chan struct{})           { <-stop }
func (i *informer) RunWithContext(ctx context.Context) { <-ctx.Done() }

type synced struct {
	name string
	done <-chan struct{}
}

func (s synced) Name() string          { return s.name }
func (s synced) Done() <-chan struct{} { return s.done }

func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(h), nil
}

func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(h), nil
}

func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(h), nil
}

// RemoveEventHandler stops a handler. A call of it that is under way may still finish.
func (i *informer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	if reg, ok := handle.(*registration); ok {
		reg.cancel()
	}
	return nil
}

// registration is one handler's place in the stream of changes.
type registration struct {
	i      *informer
	h      toolscache.ResourceEventHandler
	cancel context.CancelFunc
	synced chan struct{} // closed once the initial objects have been handled
	done   chan struct{}
	// known is what the handler was told of, so that the differences can be told if the watcher falls behind.
	known map[string]*cache.Entry
}

// add starts a handler. It ends with RemoveEventHandler or with the cache.
func (i *informer) add(h toolscache.ResourceEventHandler) *registration {
	ctx, cancel := context.WithCancel(context.Background())
	g := &registration{i: i, h: h, cancel: cancel, synced: make(chan struct{}), done: make(chan struct{}), known: map[string]*cache.Entry{}}
	go g.run(ctx)
	return g
}

// HasSynced tells whether the handler has handled the initial objects.
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

// run delivers until the handler is removed or the cache ends. A watcher that expired, which takes a handler that
// is thousands of changes late, is replaced by one that starts with the present.
func (g *registration) run(ctx context.Context) {
	defer close(g.done)
	defer g.cancel()
	if g.i.table.WaitFor(ctx, 1) != nil {
		return
	}
	for first := true; ; first = false {
		w, initial, _, err := g.i.table.Watch(stored(g.i.key.row), cache.Query{}, -1)
		if errors.Is(err, cache.ErrExpired) {
			continue
		}
		if err != nil {
			return
		}
		g.reconcile(ctx, initial, first)
		if first {
			close(g.synced)
		}
		err = g.follow(ctx, w)
		w.Close()
		if !errors.Is(err, cache.ErrExpired) {
			return
		}
	}
}

// follow delivers a watcher's events.
func (g *registration) follow(ctx context.Context, w *cache.Watcher) error {
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			switch watch.EventType(e.Type) {
			case watch.Added, watch.Modified:
				g.put(e.Entry, false)
			case watch.Deleted:
				g.remove(e.Entry, false)
			}
		}
	}
}

// reconcile tells the differences between what was known and what there is.
func (g *registration) reconcile(ctx context.Context, now []*cache.Entry, initial bool) {
	seen := make(map[string]struct{}, len(g.known))
	for _, e := range now {
		if ctx.Err() != nil {
			return
		}
		if !initial {
			seen[e.Key] = struct{}{}
		}
		g.put(e, initial)
	}
	for key, e := range g.known {
		if initial || ctx.Err() != nil {
			return
		}
		if _, there := seen[key]; !there {
			g.remove(e, true)
		}
	}
}

// put tells of an object that is there. One that was replaced by another of its name has gone first.
func (g *registration) put(e *cache.Entry, initial bool) {
	old := g.known[e.Key]
	if old != nil && old.Revision >= e.Revision {
		return
	}
	if old != nil && old.Object.GetUID() != e.Object.GetUID() {
		g.remove(old, true)
		old = nil
	}
	obj, err := g.i.view.of(e)
	if err != nil {
		return
	}
	if old == nil {
		g.known[e.Key] = e
		g.h.OnAdd(obj, initial)
		return
	}
	before, err := g.i.view.of(old)
	if err != nil {
		return
	}
	g.known[e.Key] = e
	g.h.OnUpdate(before, obj)
}

// remove tells that an object is gone. missed says that e may not be its last state.
func (g *registration) remove(e *cache.Entry, missed bool) {
	delete(g.known, e.Key)
	obj, err := g.i.view.of(e)
	if err != nil {
		return
	}
	if missed {
		g.h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: ctrl.ObjectKeyFromObject(obj).String(), Obj: obj})
		return
	}
	g.h.OnDelete(obj)
}
