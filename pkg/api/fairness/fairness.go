// Package fairness decides which requests are executed now, which wait and which are rejected, so that no user can keep
// others from using the API. It follows API Priority and Fairness (KEP-1040). FlowSchema and PriorityLevelConfiguration
// objects configure it; until they are read, it uses the mandatory and suggested ones of upstream's library.
//
// Its invariant: the seats in use never exceed Config.Seats by more than one for each level, whose share is rounded
// up, and every queue, wait and map has a bound, above which a *Rejected is returned.
//
// # Decisions
//
// Upstream's queue set (k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing) grants a seat for the duration of a
// function. Here a seat is released when the response begins: from then on the client determines the pace, and a client
// that does not read its response must not hold a seat. So this package has queues of its own: one per flow, instead of
// shuffle sharding over a fixed number, and the flow with the fewest seats is served first. The length of a queue
// limits a flow, and that times the number of queues limits a level. The hand size, which says how many queues flows
// share, has no meaning.
//
// A flow has at most three quarters of the seats that its level can reach, so that other flows need not wait for it.
//
// Seats that upstream calls lendable are in a shared pool, from which any level takes free ones. When a seat of the
// pool is released, the waiting level with the smallest fraction of its nominal seats gets it.
package fairness

import (
	"sync"
	"sync/atomic"
	"time"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// Config configures the limits of a Set. Zero values mean the defaults.
type Config struct {
	// Seats is the number of concurrent requests, not counting exempt ones. Default 600, as upstream.
	Seats int
	// QueueLength limits the waiting requests of a flow, Queued the waiting requests of a priority level (default 1,000
	// each); a level's configuration may set lower limits. When Queued is reached, a request of a flow with a shorter
	// queue replaces the last one in the longest queue.
	QueueLength, Queued int
	// Wait is how long a request may wait for a seat. Default 15 s.
	Wait time.Duration
	// Outstanding limits the requests of a flow that wait, execute or are sending their response (default 500), Streams
	// its watches and other long-running requests (default 4,000).
	Outstanding, Streams int
	// BodyBytes limits the request bodies in memory for all flows (default 32 MiB), FlowBodyBytes the bodies of a flow
	// (default 8 MiB). A flow with at most 64 KiB may also use a reserve of the size of BodyBytes.
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
	if c.Wait == 0 {
		c.Wait = 15 * time.Second
	}
}

// smallBodies is the size of bodies, in bytes, up to which a flow may use the reserve.
const smallBodies = 64 << 10

// idleFlows is the approximate number of flows without requests that a level remembers.
const idleFlows = 256

// Rejected is the error for requests that are not served. The client may retry.
type Rejected struct {
	// Reason is upstream's where it has one: queue-full, concurrency-limit, time-out, cancelled, outstanding, streams,
	// body-bytes.
	Reason string
}

func (r *Rejected) Error() string { return "too many requests: " + r.Reason }

// level is a priority level.
type level struct {
	name    string
	exempt  bool
	queues  bool // if false, requests are rejected when no seat is free
	nominal int
	// guaranteed is the number of seats that no other level borrows, limit the maximum with borrowed ones, most the
	// maximum for one flow.
	guaranteed, limit, most int
	// queueLength limits the waiting requests of a flow, queueable the level's.
	queueLength, queueable int
	executing, waiting     int
	// requests is the number of requests between Begin and End. A retired level is no longer configured, and removed when
	// it has none.
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

// flow is the requests of a user, or of a namespace, in a flow schema.
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
	// ok is true if the waiter got a seat, false if it was displaced by another flow's. It is valid once done is
	// closed.
	ok bool
}

// Set is the priority levels of a server.
type Set struct {
	cfg Config
	// schemas are the configured flow schemas.
	schemas atomic.Pointer[matching]

	mu     sync.Mutex
	levels []*level
	counts map[string]*counters // by name of the flow schema
	// pool is the number of seats that are shared by all levels, pooled the number of them in use.
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

// Stat is the current state and the counters of a flow schema.
type Stat struct {
	Schema, Level      string
	Executing, Waiting int
	Dispatched         uint64
	Rejected           map[string]uint64 // by reason
}

// Stats returns all flow schemas except exempt ones, whose requests are not counted.
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
		for reason, n := range c.rejected {
			st.Rejected[reason] = n
		}
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
