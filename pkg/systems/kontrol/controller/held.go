package controller

import (
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// Reasons to wait, in addition to the name of another Resource. The asterisk keeps them apart from names.
const (
	onCluster = "*cluster" // until the cluster answers, or is no longer suspended
	onKind    = "*kind"    // until the cluster has the kind
)

// held indexes the waiting pairs by their cluster and the reason of the wait.
type held struct {
	on map[watch.Pair]string
	by map[string]map[string]map[watch.Pair]bool // by cluster and reason
}

func newHeld() held {
	return held{on: map[watch.Pair]string{}, by: map[string]map[string]map[watch.Pair]bool{}}
}

// set records what a pair waits for; empty for nothing.
func (h *held) set(p watch.Pair, on string) {
	if was, ok := h.on[p]; ok && was != on {
		if delete(h.on, p); len(h.on) == 0 {
			h.on = map[watch.Pair]string{} // a Go map never shrinks
		}
		sets := h.by[p.Cluster]
		if delete(sets[was], p); len(sets[was]) == 0 {
			delete(sets, was)
		}
		if len(sets) == 0 {
			delete(h.by, p.Cluster)
		}
	}
	if on == "" {
		return
	}
	h.on[p] = on
	sets := h.by[p.Cluster]
	if sets == nil {
		sets = map[string]map[watch.Pair]bool{}
		h.by[p.Cluster] = sets
	}
	if sets[on] == nil {
		sets[on] = map[watch.Pair]bool{}
	}
	sets[on][p] = true
}

func (h *held) waiting(cluster, on string) (list []watch.Pair) {
	for p := range h.by[cluster][on] {
		list = append(list, p)
	}
	return list
}

func (h *held) all(cluster string) (list []watch.Pair) {
	for on := range h.by[cluster] {
		list = append(list, h.waiting(cluster, on)...)
	}
	return list
}

func (h *held) forget(keep func(watch.Pair) bool) {
	for p := range h.on {
		if !keep(p) {
			h.set(p, "")
		}
	}
}

func (r *applied) hold(p watch.Pair, on string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held.set(p, on)
}

// kick reconciles the pairs that wait for something on a cluster.
func (r *applied) kick(cluster, on string) {
	r.mu.Lock()
	list := r.held.waiting(cluster, on)
	r.mu.Unlock()
	r.wake(list)
}

func (r *applied) wake(list []watch.Pair) {
	for _, p := range list {
		r.Enqueue(pairRequest(p.Resource, p.Cluster), settle)
	}
}
