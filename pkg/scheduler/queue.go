package scheduler

import (
	"container/heap"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A pod that was woken and failed again waits, twice as long each time.
const (
	firstBackoff = 50 * time.Millisecond
	mostBackoff  = 10 * time.Second
)

// where a pending pod is.
type where uint8

const (
	active        where = iota // waits for its turn
	backingOff                 // waits for its timer
	unschedulable              // waits for an event that can help
	underway                   // being placed or bound
)

// pending is a pod without a node.
type pending struct {
	info     *podInfo
	newer    *corev1.Pod // what became of the pod while it was underway; nil: nothing
	since    time.Time
	attempts int
	tried    time.Time // when the present or last attempt began
	failed   time.Time // last attempt
	where    where
	wide     bool // refused by a filter that looks beyond one node
	timer    *time.Timer
	index    int
	told     string    // the last reason written to its status
	reserved *nodeInfo // where the reserves hold something for it; nil: nowhere
}

// queue holds the pending pods. The scheduler's lock guards it. It is bounded by the pods that exist.
type queue struct {
	pods  map[types.UID]*pending
	aside map[*pending]struct{} // those that are unschedulable
	wide  int                   // how many of them are wide
	heap  activeHeap
	wake  chan struct{} // 1 deep: the active heap is not empty
	later func(*pending)
}

func newQueue() *queue {
	return &queue{pods: map[types.UID]*pending{}, aside: map[*pending]struct{}{}, wake: make(chan struct{}, 1)}
}

// put sets a pod aside until an event can help it.
func (q *queue) put(p *pending) {
	p.where = unschedulable
	q.aside[p] = struct{}{}
	if p.wide {
		q.wide++
	}
}

// take takes a pod back, if it was set aside.
func (q *queue) take(p *pending) {
	if _, ok := q.aside[p]; !ok {
		return
	}
	delete(q.aside, p)
	if p.wide {
		q.wide--
	}
}

func (q *queue) activate(p *pending) {
	q.take(p)
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.where = active
	heap.Push(&q.heap, p)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// retry makes an unschedulable pod active, at once the first time and after a pause when it failed again and again.
func (q *queue) retry(p *pending, now time.Time) {
	if p.where != unschedulable {
		return
	}
	var pause time.Duration
	if p.attempts > 1 {
		pause = min(firstBackoff<<min(p.attempts-2, 10), mostBackoff) - now.Sub(p.failed)
	}
	if pause <= 0 {
		q.activate(p)
		return
	}
	q.take(p)
	p.where = backingOff
	p.timer = time.AfterFunc(pause, func() { q.later(p) })
}

func (q *queue) pop() *pending {
	if len(q.heap) == 0 {
		return nil
	}
	p := heap.Pop(&q.heap).(*pending)
	p.where, p.tried = underway, time.Now()
	return p
}

func (q *queue) remove(p *pending) {
	q.take(p)
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if p.where == active {
		heap.Remove(&q.heap, p.index)
	}
	delete(q.pods, p.info.pod.UID)
}

// activeHeap has the highest priority first, and of one priority the oldest.
type activeHeap []*pending

func (h activeHeap) Len() int { return len(h) }
func (h activeHeap) Less(i, j int) bool {
	if h[i].info.priority != h[j].info.priority {
		return h[i].info.priority > h[j].info.priority
	}
	return h[i].since.Before(h[j].since)
}
func (h activeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *activeHeap) Push(x any) {
	p := x.(*pending)
	p.index = len(*h)
	*h = append(*h, p)
}
func (h *activeHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return p
}
