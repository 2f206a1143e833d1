package pod

import (
	"context"
	"sync"
	"time"
)

// gate lets so many operations run at a time, in the order in which they came. Making and removing namespaces, cgroups and mounts takes locks of the
// kernel's, for which it spins: 110 containers at once cost a third more processor time than a few after each other.
type gate chan struct{}

// gatePatience is how long an operation waits at most. One that hangs, such as in a mount of a dead server, must not hold up other pods for longer.
const gatePatience = 10 * time.Second

// newGate returns a gate for a machine with that many processors.
func newGate(processors int) gate { return make(gate, max(8, 4*processors)) }

// enter waits until there is room, for gatePatience, or until ctx is done. leave may be called more than once.
func (g gate) enter(ctx context.Context) (leave func()) {
	timer := time.NewTimer(gatePatience)
	defer timer.Stop()
	select {
	case g <- struct{}{}:
		return sync.OnceFunc(func() { <-g })
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}
