package engine

import (
	"context"
	"log/slog"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kind is a kind of object that the server stores.
type Kind struct {
	schema.GroupVersionKind
	Resource   string // plural
	Namespaced bool
	// Deletable is false for kinds that cannot be listed and deleted.
	Deletable bool
	// Stored is the version in which objects are stored, "" if it is not known.
	Stored string
	// Storage distinguishes a kind from a removed kind of the same name. It is only compared.
	Storage any
}

// Metadata returns an empty metadata-only object of the kind.
func (k Kind) Metadata() *metav1.PartialObjectMetadata {
	p := &metav1.PartialObjectMetadata{}
	p.SetGroupVersionKind(k.GroupVersionKind)
	return p
}

// Kinds lists the kinds that the server stores.
type Kinds interface {
	// Stored lists the kinds. The channel is closed when the result is out of date.
	Stored() ([]Kind, <-chan struct{})
}

// Every watches all kinds that the server stores, also kinds added later. It may read them.
type Every struct {
	Kinds Kinds
	// Object returns the object type to watch for a kind, such as its Metadata, or nil to not watch the kind.
	Object func(Kind) client.Object
	// Event returns the requests for a change of an object: was is nil for an addition, is for a deletion.
	Event func(ctx context.Context, env Env, k Kind, was, is client.Object) []Request
}

// Now lists the watched kinds.
func (e *Every) Now() []Kind {
	all, _ := e.Kinds.Stored()
	out := make([]Kind, 0, len(all))
	for _, k := range all {
		if e.Object(k) != nil {
			out = append(out, k)
		}
	}
	return out
}

// every keeps a source running for each of the kinds.
type every struct {
	*Every
	env     Env
	source  func(Watch) *source
	queue   workqueue.TypedRateLimitingInterface[Request]
	log     *slog.Logger
	wg      *sync.WaitGroup
	running map[Kind]context.CancelFunc
	changed <-chan struct{}
}

// update starts sources for new kinds and stops the sources of removed kinds. It returns the new ones.
func (e *every) update(ctx context.Context) (started []*source) {
	kinds, changed := e.Kinds.Stored()
	e.changed = changed
	present := make(map[Kind]bool, len(kinds))
	for _, k := range kinds {
		present[k] = true
		if e.running[k] != nil {
			continue
		}
		object := e.Object(k)
		if object == nil {
			continue
		}
		s := e.source(Watch{Object: object, Event: func(ctx context.Context, env Env, was, is client.Object) []Request {
			return e.Event(ctx, env, k, was, is)
		}})
		own, cancel := context.WithCancel(ctx)
		e.running[k] = cancel
		started = append(started, s)
		e.wg.Go(func() { s.run(own, e.queue, e.wg) })
	}
	for k, cancel := range e.running {
		if !present[k] {
			cancel()
			delete(e.running, k)
		}
	}
	return started
}

func (e *every) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.changed:
		}
		for _, s := range e.update(ctx) {
			e.wg.Go(func() {
				select {
				case err := <-s.failed: // such as a kind that is gone again
					e.log.Warn("could not watch a new kind", "object", s.watch.Object.GetObjectKind().GroupVersionKind(), "error", err)
				case <-s.synced:
				case <-ctx.Done():
				}
			})
		}
	}
}
