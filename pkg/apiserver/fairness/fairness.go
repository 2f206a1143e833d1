// Package fairness decides which requests are executed now, which wait and which are rejected, so that no user can keep
// others from using the API. It follows API Priority and Fairness (KEP-1040). FlowSchema and PriorityLevelConfiguration objects configure
// it; until they are read, it uses the mandatory and suggested ones of upstream's library.
//
// It may import only the Kubernetes libraries. Its invariant: the seats in use never exceed Config.Seats (or one per
// level, if that is more), and every queue, wait and map has a bound, above which a *Rejected is returned.
//
// # Decisions
//
// Upstream's queue set (k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing) grants a seat for the duration of a
// function. Here a seat is released when the response begins: from then on the client determines the pace, and a client
// that does not read its response must not hold a seat. So this package has queues of its own: one per flow, instead of
// shuffle sharding over a fixed number, and the flow with the fewest seats is served first. The length of a queue limits a flow, and that
// times the number of queues limits a level. The hand size, which says how many queues flows share, has no meaning.
//
// A flow has at most three quarters of the seats that its level can reach, so that other flows need not wait for it.
//
// Seats that upstream calls lendable are in a shared pool, from which any level takes free ones. When a seat of the
// pool is released, the waiting level with the smallest fraction of its nominal seats gets it.
package fairness

import (
	"context"
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
	// QueueLength limits the waiting requests of a flow, Queued those of a priority level (default 1,000 each); a level's configuration
	// may set lower limits. When the latter is reached, a request of a flow with a shorter queue replaces the last one in the longest queue.
	QueueLength, Queued int
	// Wait is how long a request may wait for a seat. Default 15 s.
	Wait time.Duration
	// Outstanding limits the requests of a flow that wait, execute or are sending their response (default 500), Streams
	// its watches and other long-running requests (default 4,000).
	Outstanding, Streams int
	// BodyBytes limits the request bodies in memory for all flows (default 32 MiB), FlowBodyBytes those of a flow
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
	queues  bool // if false, requests are rejected when there is no free seat
	nominal int
	// guaranteed is the number of seats that no other level borrows, limit the maximum with borrowed ones, most the maximum for one flow.
	guaranteed, limit, most int
	// queueLength limits the waiting requests of a flow, queueable those of the level.
	queueLength, queueable int
	executing, waiting     int
	// requests is the number of requests between Begin and End. A retired level is no longer configured, and removed when it has none.
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

// Ticket is an admitted request. The zero value is that of an exempt request: its methods do nothing.
type Ticket struct {
	set    *Set
	flow   *flow
	stream bool
	seated bool
	held   int
}

// Begin admits a request to its flow. stream is set for long-running requests. If it succeeds, End must be called.
func (s *Set) Begin(c Class, stream bool) (Ticket, error) {
	if c.schema == nil || c.schema.level.exempt {
		return Ticket{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := c.schema.level.flow(flowKey{c.schema.counters, c.flow})
	if stream {
		if f.streams >= s.cfg.Streams {
			return Ticket{}, c.schema.reject("streams")
		}
		f.streams++
	} else {
		if f.outstanding >= s.cfg.Outstanding {
			return Ticket{}, c.schema.reject("outstanding")
		}
		f.outstanding++
	}
	f.level.requests++
	return Ticket{set: s, flow: f, stream: stream}, nil
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

// Hold counts n bytes of the request's body until End.
func (t *Ticket) Hold(n int) error {
	s := t.set
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ofFlow, ofAll := t.flow.held+n, s.held+n
	if ofFlow > s.cfg.FlowBodyBytes || ofAll > 2*s.cfg.BodyBytes || (ofAll > s.cfg.BodyBytes && ofFlow > smallBodies) {
		return t.flow.key.schema.reject("body-bytes")
	}
	t.flow.held, s.held, t.held = ofFlow, ofAll, t.held+n
	return nil
}

// Acquire waits for a seat until ctx is done or Config.Wait has passed. Release releases it.
func (t *Ticket) Acquire(ctx context.Context) error {
	s := t.set
	if s == nil {
		return nil
	}
	s.mu.Lock()
	f := t.flow
	l := f.level
	// Waiters found no free seat or are at their flow's limit, so taking a free seat passes nobody over.
	if len(f.waiters) == 0 && f.executing < l.most && s.free(l) {
		s.seat(f)
		t.seated = true
		s.mu.Unlock()
		return nil
	}
	w, err := s.enqueue(f)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	timer := time.NewTimer(s.cfg.Wait)
	defer timer.Stop()
	reason := ""
	select {
	case <-w.done:
	case <-timer.C:
		reason = "time-out"
	case <-ctx.Done():
		reason = "cancelled"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.done: // possibly at the same time
		if t.seated = w.ok; w.ok {
			return nil
		}
		reason = "queue-full"
	default:
		f.forget(w)
	}
	return f.key.schema.reject(reason)
}

// Release releases the seat. Further calls do nothing.
func (t *Ticket) Release() {
	if !t.seated {
		return
	}
	t.seated = false
	t.set.mu.Lock()
	defer t.set.mu.Unlock()
	t.set.unseat(t.flow)
}

// End releases everything that the request holds. Further calls do nothing.
func (t *Ticket) End() {
	s := t.set
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.seated {
		s.unseat(t.flow)
	}
	if t.stream {
		t.flow.streams--
	} else {
		t.flow.outstanding--
	}
	t.flow.held -= t.held
	s.held -= t.held
	l := t.flow.level
	if l.requests--; l.retired && l.requests == 0 {
		s.remove(l)
	}
	*t = Ticket{}
}

// free reports whether the level may use another seat.
func (s *Set) free(l *level) bool {
	return l.executing < l.guaranteed || l.executing < l.limit && s.pooled < s.pool
}

func (s *Set) seat(f *flow) {
	if f.level.executing >= f.level.guaranteed {
		s.pooled++
	}
	f.level.executing++
	f.executing++
	s.served++
	f.served = s.served
	f.key.schema.dispatched++
	f.key.schema.executing++
}

func (s *Set) unseat(f *flow) {
	f.executing--
	f.level.executing--
	f.key.schema.executing--
	if f.level.executing >= f.level.guaranteed {
		s.pooled--
	}
	s.dispatch()
}

// next returns the waiting flow with the fewest seats, or nil if no flow may have another one.
func (l *level) next() (f *flow) {
	for _, g := range l.queued {
		if g.executing < l.most && (f == nil || g.executing < f.executing || (g.executing == f.executing && g.served < f.served)) {
			f = g
		}
	}
	return f
}

// dispatch grants free seats to waiters.
func (s *Set) dispatch() {
	for {
		var f *flow
		for _, l := range s.levels {
			if l.waiting == 0 || !s.free(l) || (f != nil && l.executing*f.level.nominal >= f.level.executing*l.nominal) {
				continue
			}
			if g := l.next(); g != nil {
				f = g
			}
		}
		if f == nil {
			return
		}
		w := f.waiters[0]
		f.forget(w)
		s.seat(f)
		w.ok = true
		close(w.done)
	}
}

// enqueue adds a waiter to the flow's queue.
func (s *Set) enqueue(f *flow) (*waiter, error) {
	l := f.level
	switch {
	case !l.queues:
		return nil, f.key.schema.reject("concurrency-limit")
	case len(f.waiters) >= l.queueLength:
		return nil, f.key.schema.reject("queue-full")
	case l.waiting >= l.queueable:
		longest := l.queued[0]
		for _, g := range l.queued[1:] {
			if len(g.waiters) > len(longest.waiters) {
				longest = g
			}
		}
		if len(longest.waiters) <= len(f.waiters)+1 {
			return nil, f.key.schema.reject("queue-full")
		}
		last := longest.waiters[len(longest.waiters)-1]
		longest.forget(last)
		close(last.done)
	}
	w := &waiter{done: make(chan struct{})}
	if len(f.waiters) == 0 {
		l.queued = append(l.queued, f)
	}
	f.waiters = append(f.waiters, w)
	l.waiting++
	f.key.schema.waiting++
	return w, nil
}

// forget removes a waiter from its queue.
func (f *flow) forget(w *waiter) {
	for i := range f.waiters {
		if f.waiters[i] == w {
			f.waiters = append(f.waiters[:i], f.waiters[i+1:]...)
			f.level.waiting--
			f.key.schema.waiting--
			break
		}
	}
	if len(f.waiters) > 0 {
		return
	}
	queued := f.level.queued
	for i := range queued {
		if queued[i] == f {
			last := len(queued) - 1
			queued[i], queued[last] = queued[last], nil
			f.level.queued = queued[:last]
			return
		}
	}
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
		st := Stat{Schema: c.name, Level: c.level.name, Executing: c.executing, Waiting: c.waiting, Dispatched: c.dispatched, Rejected: map[string]uint64{}}
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
