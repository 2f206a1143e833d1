package pod

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// gate lets so many operations run at a time. Making and removing namespaces, cgroups and mounts takes locks of the
// kernel's, for which it spins: 110 containers at once cost a third more processor time than a few after each other.
// And each start of a container reads and copies the whole table of mounts, so what ends pods goes before what starts
// containers, and that before what begins with another pod: a node that has many pods to start has few of them half
// made.
type gate struct {
	mu      sync.Mutex
	room    int
	waiting [stages]list.List // of chan struct{}, which are closed when it is their turn
}

// stage is how far an operation's pod has come.
type stage int

const (
	stageRelease stage = iota
	stageStart
	stageSandbox
	stages
)

// gatePatience is how long an operation waits at most. One that hangs, such as in a mount of a dead server, must not
// hold up other pods for longer.
const gatePatience = 10 * time.Second

// newGate returns a gate for a machine with that many processors.
func newGate(processors int) *gate { return &gate{room: max(8, 4*processors)} }

// enter waits until there is room and nobody of the same stage who came before or of an earlier one waits, for
// gatePatience, or until ctx is done. leave may be called more than once.
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
	case <-turn: // at the same moment
		return sync.OnceFunc(g.leave)
	default:
		g.waiting[s].Remove(at)
		return func() {}
	}
}

// leave gives the room to who is next.
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
