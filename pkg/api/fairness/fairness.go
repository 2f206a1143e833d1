// Package fairness decides which requests are executed, wait or are rejected, so that no user can keep others from
// using the API. It implements API Priority and Fairness (KEP-1040). FlowSchemas and PriorityLevelConfigurations
// configure it. Until they are read, it uses upstream's mandatory and suggested ones. Its invariant: the seats in
// use exceed Config.Seats by at most one per level (shares are rounded up), and every queue, wait and map has a
// limit, above which a *Rejected is returned.
//
// It differs from upstream's queue sets (fairqueuing). A seat is released when the response begins, because from
// then on the client determines the pace. Each flow has its own queue instead of shuffle sharding, and the flow with
// the fewest seats is served first. The queue length limits a flow, and that length times the number of queues a
// level; the hand size is ignored. A flow gets at most three quarters of the seats that its level can reach, so that
// other flows need not wait for it. All levels share a pool of lendable seats, and the waiting level with the
// smallest fraction of its nominal seats gets a released one.
package fairness

import (
	"cmp"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// Config configures the limits of a Set. Zero values mean defaults.
type Config struct {
	// Seats is the number of concurrent requests, excluding exempt ones. Default 600, as upstream.
	Seats int
	// QueueLength limits a flow's waiting requests, Queued a priority level's (default 1,000 each). A level's
	// configuration may set lower limits. When Queued is reached, a request of a flow with a shorter queue displaces
	// the last one in the longest queue.
	QueueLength, Queued int
	// Wait is how long a request may wait for a seat. Default 15 s.
	Wait time.Duration
	// Outstanding limits a flow's requests that wait, execute or send their response (default 500), Streams its
	// watches and other long-running requests (default 4,000).
	Outstanding, Streams int
	// BodyBytes limits the request bodies in memory of all flows (default 32 MiB), FlowBodyBytes the bodies of one flow
	// (default 8 MiB). A flow with at most 64 KiB may also use a reserve as large as BodyBytes.
	BodyBytes, FlowBodyBytes int
}

func (c *Config) defaults() {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.Seats, 600)
	set(&c.QueueLength, 1000)
	set(&c.Queued, 1000)
	set(&c.Outstanding, 500)
	set(&c.Streams, 4000)
	set(&c.BodyBytes, 32<<20)
	set(&c.FlowBodyBytes, 8<<20)
	c.Wait = cmp.Or(c.Wait, 15*time.Second)
}

// smallBodies is the size of bodies, in bytes, up to which a flow may use the reserve.
const smallBodies = 64 << 10

// idleFlows is the approximate number of idle flows that a level keeps.
const idleFlows = 256

// Rejected is the error for a rejected request. The client may retry.
type Rejected struct {
	// Reason is one of upstream's reasons queue-full, concurrency-limit, time-out and cancelled, or outstanding,
	// streams or body-bytes.
	Reason string
}

func (r *Rejected) Error() string { return "too many requests: " + r.Reason }

// level is a priority level.
type level struct {
	name    string
	exempt  bool
	queues  bool // if false, reject requests when no seat is free
	nominal int
	// guaranteed is the number of seats that other levels cannot borrow, limit the maximum including borrowed ones,
	// most the maximum for one flow.
	guaranteed, limit, most int
	// queueLength limits a flow's waiting requests, queueable the level's.
	queueLength, queueable int
	executing, waiting     int
	// requests is the number of requests between Begin and End. The configuration has
	// dropped a retired level, which is removed when requests becomes 0.
	requests int
	retired  bool
	spec     *flowcontrol.PriorityLevelConfiguration
	flows    map[flowKey]*flow
	// purgeAt is the number of flows at which idle ones are removed.
	purgeAt int
	queued  []*flow // flows with waiters
}

type flowKey struct {
	schema *counters
	name   string
}

// flow contains the requests of a user or namespace in a flow schema.
type flow struct {
	key         flowKey
	level       *level
	executing   int
	outstanding int
	streams     int
	held        int // bytes of request bodies
	served      uint64
	waiters     []*waiter
}

type waiter struct {
	done chan struct{}
	// ok is true if the waiter got a seat, false if another flow's waiter displaced it. It may be read once done is
	// closed.
	ok bool
}

// Set contains a server's priority levels and flow schemas.
type Set struct {
	cfg     Config
	schemas atomic.Pointer[matching]

	mu     sync.Mutex
	levels []*level
	counts map[string]*counters // by flow schema name
	// pool is the number of seats that the levels share, pooled the number of these in use.
	pool, pooled int
	held         int
	served       uint64
}

// New returns a Set with upstream's levels and schemas.
func New(cfg Config) *Set {
	cfg.defaults()
	s := &Set{cfg: cfg, counts: map[string]*counters{}}
	s.Configure(append(bootstrap.SuggestedPriorityLevelConfigurations, bootstrap.MandatoryPriorityLevelConfigurations...),
		append(bootstrap.SuggestedFlowSchemas, bootstrap.MandatoryFlowSchemas...))
	return s
}

func (l *level) flow(k flowKey) *flow {
	if f := l.flows[k]; f != nil {
		return f
	}
	if len(l.flows) >= l.purgeAt {
		for k, f := range l.flows {
			if f.outstanding == 0 && f.streams == 0 {
				delete(l.flows, k)
			}
		}
		l.purgeAt = 2*len(l.flows) + idleFlows
	}
	f := &flow{key: k, level: l}
	l.flows[k] = f
	return f
}

// Stat is the current state of a flow schema and its counters.
type Stat struct {
	Schema, Level      string
	Executing, Waiting int
	Dispatched         uint64
	Rejected           map[string]uint64 // by reason
}

// Stats returns all flow schemas except the schemas of exempt levels, whose requests are not counted.
func (s *Set) Stats() []Stat {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Stat
	for _, c := range s.schemas.Load().schemas {
		if c.level.exempt {
			continue
		}
		st := Stat{
			Schema:     c.name,
			Level:      c.level.name,
			Executing:  c.executing,
			Waiting:    c.waiting,
			Dispatched: c.dispatched,
			Rejected:   map[string]uint64{},
		}
		maps.Copy(st.Rejected, c.rejected)
		all = append(all, st)
	}
	return all
}

// Limits returns the nominal seats of each level except the exempt one.
func (s *Set) Limits() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	limits := map[string]int{}
	for _, l := range s.levels {
		if !l.exempt {
			limits[l.name] = l.nominal
		}
	}
	return limits
}
