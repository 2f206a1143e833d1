package scheduler

import (
	"container/heap"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

// The back-off of a pod doubles with each failed attempt.
const (
	firstBackoff = 50 * time.Millisecond
	mostBackoff  = 10 * time.Second
)

type where uint8

const (
	active        where = iota // ready to be scheduled
	backingOff                 // waiting for its back-off timer
	unschedulable              // waiting for an event that may make it schedulable
	underway                   // being scheduled or bound
)

type pending struct {
	info     *podInfo
	newer    *corev1.Pod // the latest update received while underway, or nil
	since    time.Time
	attempts int
	tried    time.Time // start of the current or last attempt
	failed   time.Time // time of the last failed attempt
	where    where
	wide     bool // rejected by a filter that depends on other nodes
	timer    *time.Timer
	index    int
	reported string    // why the last attempt found no node
	report   *report   // status to write, or nil
	recorded time.Time // time of its last event
	expects  bool      // its volumes are being provisioned for its nominated node
	reserved *nodeInfo // the node on which it is reserved, or nil

	writing sync.Mutex // held while its status or binding is written; locked before the scheduler's lock
	wrote   bool       // this process wrote its status; guarded by writing
}

// queue holds the pending pods. It is guarded by the scheduler's lock. Its size is at most the number of pods.
type queue struct {
	pods          map[types.UID]*pending
	unschedulable map[*pending]struct{}                          // pods with where == unschedulable
	wide          int                                            // how many of them are wide
	gangs         map[types.NamespacedName]map[*pending]struct{} // pods by pod group
	heap          activeHeap
	waiting       map[*pending]struct{} // underway, waiting for devices
	resumed       []*pending            // underway, ready to bind
	wake          chan struct{}         // capacity 1: heap or resumed is not empty
	later         func(*pending)
}

func newQueue() *queue {
	return &queue{
		pods:          map[types.UID]*pending{},
		gangs:         map[types.NamespacedName]map[*pending]struct{}{},
		unschedulable: map[*pending]struct{}{},
		waiting:       map[*pending]struct{}{},
		wake:          make(chan struct{}, 1),
	}
}

func (q *queue) add(p *pending) {
	q.pods[p.info.pod.UID] = p
	if key := p.info.gang; key.Name != "" {
		if q.gangs[key] == nil {
			q.gangs[key] = map[*pending]struct{}{}
		}
		q.gangs[key][p] = struct{}{}
	}
	q.activate(p)
}

// members returns the pods of a group that wait for a node.
func (q *queue) members(key types.NamespacedName) []*pending {
	var out []*pending
	for p := range q.gangs[key] {
		if p.where != underway {
			out = append(out, p)
		}
	}
	return out
}

// claim removes a waiting pod from its queue and marks it underway.
func (q *queue) claim(p *pending) {
	q.take(p)
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if p.where == active {
		heap.Remove(&q.heap, p.index)
	}
	p.where, p.tried = underway, time.Now()
}

// put marks a pod unschedulable until an event retries it.
func (q *queue) put(p *pending) {
	p.where = unschedulable
	q.unschedulable[p] = struct{}{}
	if p.wide {
		q.wide++
	}
}

// take removes a pod from the unschedulable pods, if it is one.
func (q *queue) take(p *pending) {
	if _, ok := q.unschedulable[p]; !ok {
		return
	}
	delete(q.unschedulable, p)
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
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// goOn continues the binding of a pod that waited for devices.
func (q *queue) goOn(p *pending) {
	delete(q.waiting, p)
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	q.resumed = append(q.resumed, p)
	q.signal()
}

func (q *queue) bindable() *pending {
	for len(q.resumed) > 0 {
		p := q.resumed[0]
		q.resumed[0] = nil
		if q.resumed = q.resumed[1:]; q.pods[p.info.pod.UID] != p {
			continue // it was deleted
		}
		if p.reserved != nil {
			return p
		}
		q.remove(p) // another scheduler bound it to its node
	}
	return nil
}

// retry makes an unschedulable pod active: at once after its first failure, otherwise after its back-off.
func (q *queue) retry(p *pending, now time.Time) {
	if p.where != unschedulable {
		return
	}
	var pause time.Duration
	if p.attempts > 1 {
		pause = backoff.Pause(firstBackoff, mostBackoff, p.attempts-1) - now.Sub(p.failed)
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
	delete(q.waiting, p)
	delete(q.pods, p.info.pod.UID)
	delete(q.gangs[p.info.gang], p)
	if len(q.gangs[p.info.gang]) == 0 {
		delete(q.gangs, p.info.gang)
	}
}

// activeHeap orders pods by priority, highest first, then by age, oldest first.
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
