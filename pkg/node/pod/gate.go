package pod

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// gate limits concurrent operations. Creating and removing namespaces, cgroups and mounts contends for the kernel's
// spinning locks: 110 containers started at once took a third more CPU time than a few at a time. Each start also reads
// and copies the mount table. Waiting operations enter by stage: ends of pods first, then starts of containers, then
// new sandboxes, so that a node with many pods to start has few half-started ones.
type gate struct {
	mu      sync.Mutex
	room    int
	waiting [stages]list.List // of chan struct{}, closed on the operation's turn
}

// stage is the priority class of an operation, most urgent first.
type stage int

const (
	stageRelease stage = iota
	stageStart
	stageSandbox
	stages
)

// gatePatience is the longest wait for a slot: an operation that hangs, as on a dead mount, must not block others.
const gatePatience = 10 * time.Second

func newGate(processors int) *gate { return &gate{room: max(8, 4*processors)} }

// enter waits for a free slot. Earlier stages come first, and within a stage the order of arrival counts. It returns
// after gatePatience or when ctx is done even without a slot. leave may be called more than once.
func (g *gate) enter(ctx context.Context, s stage) (leave func()) {
	g.mu.Lock()
	if g.room > 0 {
		g.room--
		g.mu.Unlock()
		return sync.OnceFunc(g.leave)
	}
	turn := make(chan struct{})
	at := g.waiting[s].PushBack(turn)
	g.mu.Unlock()
	timer := time.NewTimer(gatePatience)
	defer timer.Stop()
	select {
	case <-turn:
		return sync.OnceFunc(g.leave)
	case <-timer.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-turn: // granted at the same moment
		return sync.OnceFunc(g.leave)
	default:
		g.waiting[s].Remove(at)
		return func() {}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.waiting {
		if next := g.waiting[s].Front(); next != nil {
			close(g.waiting[s].Remove(next).(chan struct{}))
			return
		}
	}
	g.room++
}
