// Package watch follows the objects that Kontrol applied: one watch for each kind and cluster, shared by all Resources, for as long as any
// needs it.
//
// It may import pkg/kontrol and client libraries. Its invariants: an object is reported as missing only if the cluster said so, and what
// cannot be watched is reported with its reason. What is held is limited by maxObjects; changes are not queued but replace each other.
package watch

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kontrol/target"
)

// maxObjects limits the objects of one kind on one cluster.
const maxObjects = 50_000

// Pair is a Resource on a cluster.
type Pair struct{ Resource, Cluster string }

// Seen is what is known of an object.
type Seen struct {
	// Known is false until the cluster's objects of the kind are listed.
	Known bool
	// Reason and Error say why they cannot be.
	Reason, Error string
	// Object is nil if it does not exist. It must not be changed.
	Object *unstructured.Unstructured
}

// kind is a kind of objects on a cluster.
type kind struct {
	cluster string
	schema.GroupVersionKind
}

// place is where an object is.
type place struct {
	kind
	types.NamespacedName
}

// Hub has the watches. It is safe for concurrent use.
type Hub struct {
	pool    *target.Pool
	begin   func(func(context.Context))
	changed func(Pair)

	mu      sync.Mutex
	watches map[kind]*watcher
	places  map[Pair]place
}

// New returns a hub without watches. begin runs a function in a goroutine until its context ends; changed is called, without locks, when
// anything that Look returns for a pair may have changed.
func New(pool *target.Pool, begin func(func(context.Context)), changed func(Pair)) *Hub {
	return &Hub{pool: pool, begin: begin, changed: changed, watches: map[kind]*watcher{}, places: map[Pair]place{}}
}

// Want follows the object of a pair, until Drop.
func (h *Hub) Want(p Pair, t kontrol.Target) {
	gvk := schema.FromAPIVersionAndKind(t.APIVersion, t.Kind)
	at := place{kind{p.Cluster, gvk}, types.NamespacedName{Namespace: t.Namespace, Name: t.Name}}
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, ok := h.places[p]; ok {
		if was == at {
			return
		}
		h.drop(p, was)
	}
	h.places[p] = at
	w := h.watches[at.kind]
	if w == nil {
		w = newWatcher(h, at.kind)
		h.watches[at.kind] = w
		h.begin(w.run)
	}
	w.want(at.NamespacedName, p)
}

// Drop ends what Want began. A watch ends with its last pair.
func (h *Hub) Drop(p Pair) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, ok := h.places[p]; ok {
		h.drop(p, was)
	}
}

func (h *Hub) drop(p Pair, at place) {
	delete(h.places, p)
	if w := h.watches[at.kind]; w != nil && w.unwant(at.NamespacedName, p) {
		delete(h.watches, at.kind)
		w.cancel()
	}
}

// Look returns what is known of the object of a pair.
func (h *Hub) Look(p Pair) Seen {
	h.mu.Lock()
	at, ok := h.places[p]
	w := h.watches[at.kind]
	h.mu.Unlock()
	if !ok || w == nil {
		return Seen{}
	}
	return w.look(at.NamespacedName)
}

// Reached makes the watches of a cluster try again: it became ready, or no longer is, or has other kinds.
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
