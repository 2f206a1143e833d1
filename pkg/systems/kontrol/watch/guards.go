package watch

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

const (
	// maxGuards limits the watches of single objects, for each kind and cluster.
	maxGuards = 32
	// unguardedInterval is how often unlabelled objects beyond maxGuards are read.
	unguardedInterval = 30 * time.Second
)

// guards follow the objects that lost the label that the shared watch selects, each with its own watch. Only
// uncorrected drift leaves such objects, so there are few. Objects beyond maxGuards are read every
// unguardedInterval.
type guards struct {
	*watcher
	ctx    context.Context
	cancel context.CancelFunc
	client client.WithWatch
	timer  *time.Timer // runs while there are unguarded objects

	wg    sync.WaitGroup
	mu    sync.Mutex
	on    map[types.NamespacedName]bool
	armed bool // used only by update and read
}

func newGuards(ctx context.Context, w *watcher, c client.WithWatch) *guards {
	ctx, cancel := context.WithCancel(ctx)
	g := &guards{
		watcher: w,
		ctx:     ctx,
		cancel:  cancel,
		client:  c,
		timer:   time.NewTimer(unguardedInterval),
		on:      map[types.NamespacedName]bool{},
	}
	g.timer.Stop()
	return g
}

func (g *guards) end() {
	g.timer.Stop()
	g.cancel()
	g.wg.Wait()
}

// update starts guards for unlabelled objects.
func (g *guards) update() {
	for _, at := range g.unlabelled() {
		g.mu.Lock()
		guarded, room := g.on[at], len(g.on) < maxGuards
		if !guarded && room {
			g.on[at] = true
			g.wg.Go(func() { g.guard(at) })
		}
		g.mu.Unlock()
		if !guarded && !room && !g.armed {
			g.timer.Reset(unguardedInterval)
			g.armed = true
		}
	}
}

func (g *guards) read() error {
	g.armed = false
	for _, at := range g.unlabelled() {
		g.mu.Lock()
		guarded := g.on[at]
		g.mu.Unlock()
		if guarded {
			continue
		}
		o, err := g.get(g.ctx, g.client, at)
		if err != nil {
			return err
		}
		g.put(at, o)
		g.notify(at)
	}
	return nil
}

// guard follows one object until leaves returns true.
func (g *guards) guard(at types.NamespacedName) {
	again := backoff.Backoff{First: retryFirst, Most: retryMost, Jitter: true}
	for !g.leaves(at) {
		began := time.Now()
		if done, _ := g.follow(at); done { // errors are retried; the Cluster's condition reports an outage
			continue
		}
		again.ResetAfter(began)
		again.Wait(g.ctx)
	}
}

// leaves removes a guard if its object has its label again, is deleted or is unwanted. If the object loses its
// label later, update starts a new guard.
func (g *guards) leaves(at types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() == nil && g.isLost(at) {
		return false
	}
	delete(g.on, at)
	return true
}

// follow reads an object and watches it until the watch ends. done means that it needs no guard any more.
func (g *guards) follow(at types.NamespacedName) (done bool, err error) {
	version := g.version(at)
	o, err := g.get(g.ctx, g.client, at)
	if err != nil {
		return false, err
	}
	if o != nil {
		version = o.GetResourceVersion()
	}
	g.putLost(at, version, o)
	g.notify(at)
	if !g.isLost(at) {
		return true, nil
	}
	if o == nil { // it was deleted and created again meanwhile
		return false, nil
	}
	events, end, err := g.open(g.ctx, g.client, o.GetResourceVersion(), &client.ListOptions{Namespace: at.Namespace,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", at.Name)})
	if err != nil {
		return false, err
	}
	defer end()
	for {
		select {
		case <-g.ctx.Done():
			return true, nil
		case e, ok := <-events:
			if !ok {
				return false, nil
			}
			u, version, err := decode(e)
			if err != nil {
				return false, err
			}
			if u == nil {
				continue
			}
			if e.Type == apiwatch.Deleted {
				u = nil
			}
			g.putLost(at, version, u)
			g.notify(at)
			if !g.isLost(at) {
				return true, nil
			}
		}
	}
}
