// Package watch follows the objects that Kontrol applied: one watch for each kind and cluster, shared by all
// Resources, while any needs it.
//
// Its invariants: an object is reported missing only if the cluster said so, and a failed watch is reported with
// its reason. Memory is limited by maxObjects; changes replace each other instead of being queued, and only the
// version is held of a recorded object (Recorded).
package watch

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
)

// maxObjects limits the objects of one kind on one cluster.
const maxObjects = 50_000

// Pair is a Resource on a cluster.
type Pair struct{ Resource, Cluster string }

// Seen is what is known of an object.
type Seen struct {
	// Known is false until the cluster's objects of the kind have been listed.
	Known bool
	// Reason and Error say why they cannot be listed or watched.
	Reason, Error string
	// Object is nil if it does not exist or is recorded. Callers must not change it.
	Object *unstructured.Unstructured
	// Recorded is the value from Recorded while the object is unchanged, or 1 if the object is not held for another
	// reason. 0 means that it is not recorded.
	Recorded uint64
}

type kind struct {
	cluster string
	schema.GroupVersionKind
}

type followed struct {
	watcher *watcher
	types.NamespacedName
}

// Hub manages the watches. It is safe for concurrent use.
type Hub struct {
	pool    *target.Pool
	begin   func(func(context.Context))
	changed func(Pair)

	mu      sync.Mutex
	watches map[kind]*watcher
	places  map[Pair]followed
}

// New returns a hub without watches. begin runs a function in a goroutine until its context ends. changed is
// called without locks whenever the result of Look for a pair may have changed.
func New(pool *target.Pool, begin func(func(context.Context)), changed func(Pair)) *Hub {
	return &Hub{pool: pool, begin: begin, changed: changed, watches: map[kind]*watcher{}, places: map[Pair]followed{}}
}

// Want follows the object of a pair until Drop. It may be repeated, also with another target.
func (h *Hub) Want(p Pair, t kontrol.Target) {
	k := kind{p.Cluster, schema.FromAPIVersionAndKind(t.APIVersion, t.Kind)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, ok := h.places[p]; ok {
		if was.watcher.kind == k && was.Namespace == t.Namespace && was.Name == t.Name {
			return
		}
		h.drop(p, was)
	}
	w := h.watches[k]
	if w == nil {
		w = newWatcher(h, k)
		h.watches[k] = w
		h.begin(w.run)
	}
	at := types.NamespacedName{Namespace: t.Namespace, Name: t.Name}
	h.places[p] = followed{w, at}
	w.want(at, p)
}

// Drop reverts Want. A watch ends with its last pair.
func (h *Hub) Drop(p Pair) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, ok := h.places[p]; ok {
		h.drop(p, was)
	}
}

func (h *Hub) drop(p Pair, at followed) {
	delete(h.places, p)
	if at.watcher.unwant(at.NamespacedName, p) {
		delete(h.watches, at.watcher.kind)
		at.watcher.cancel()
	}
}

func (h *Hub) followed(p Pair) (followed, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.places[p]
	return at, ok
}

// Look returns what is known of a pair's object.
func (h *Hub) Look(p Pair) Seen {
	at, ok := h.followed(p)
	if !ok {
		return Seen{}
	}
	return at.watcher.look(at.NamespacedName)
}

// Recorded drops an object that was recorded in this version. Look returns by, which must not be 0, until the object
// changes.
func (h *Hub) Recorded(p Pair, version string, by uint64) {
	if at, ok := h.followed(p); ok {
		at.watcher.recorded(at.NamespacedName, version, by)
	}
}

// ErrUnreachable means that a cluster does not answer.
var ErrUnreachable = errors.New("the cluster does not answer")

// Load reads a recorded object again, so that Look returns it.
func (h *Hub) Load(ctx context.Context, p Pair) error {
	at, ok := h.followed(p)
	if !ok {
		return nil
	}
	t := h.pool.Get(p.Cluster)
	if t == nil || t.Client() == nil {
		return ErrUnreachable
	}
	was := at.watcher.version(at.NamespacedName)
	o, err := at.watcher.get(ctx, t.Client(), at.NamespacedName)
	if err == nil {
		at.watcher.putOver(at.NamespacedName, was, o)
	}
	return err
}

// Reached retries the failed watches of a cluster at once. Call it when the cluster's readiness or kinds change.
func (h *Hub) Reached(cluster string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, w := range h.watches {
		if k.cluster == cluster {
			w.poke()
		}
	}
}

// Watches returns the number of watches.
func (h *Hub) Watches() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches)
}
