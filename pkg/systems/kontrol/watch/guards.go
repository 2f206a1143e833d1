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
	// maxGuards limits the watches of single objects of a kind on a cluster.
	maxGuards = 32
	// unguardedInterval is how often further objects are read that lost the label by which they are watched.
	unguardedInterval = 30 * time.Second
)

// guards follow the objects that lost the label by which all others are watched, each by a watch of its own. Only drift
// that is not corrected leaves such objects, so there are few; what is beyond maxGuards is read every
// unguardedInterval.
type guards struct {
	*watcher
	ctx    context.Context
	cancel context.CancelFunc
	client client.WithWatch
	timer  *time.Timer // while there are unguarded objects

	wg    sync.WaitGroup
	mu    sync.Mutex
	on    map[types.NamespacedName]bool
	armed bool // of update and read alone
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

// end ends the guards, and waits for them.
func (g *guards) end() {
	g.timer.Stop()
	g.cancel()
	g.wg.Wait()
}

// update begins to guard what lost its label.
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

// read reads what is not guarded.
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

// guard follows one object until it has its label again, is gone or is wanted no more.
func (g *guards) guard(at types.NamespacedName) {
	again := backoff.Backoff{First: retryFirst, Most: retryMost, Jitter: true}
	for !g.leaves(at) {
		began := time.Now()
		if done, _ := g.follow(at); done { // what fails is tried again: the cluster's condition says whether it answers
			continue
		}
		again.ResetAfter(began)
		again.Wait(g.ctx)
	}
}

// leaves reports whether an object need not be guarded any more. If it loses its label after that, update begins anew.
func (g *guards) leaves(at types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() == nil && g.isLost(at) {
		return false
	}
	delete(g.on, at)
	return true
}

// follow reads an object, and follows its changes until the watch ends. It reports whether the object had its label
// again, was gone or wanted no more.
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
	if o == nil { // it was, and is there again by now
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
