// Package dispatch gives the messages of queues to ready pods. It runs in the server that keeps the queues.
//
//	Send -> queue.Queues -> a ready pod with a free slot -> its node -> program -> Acknowledge, or Return and again
//
// Its invariants: a pod has at most as many messages as its program may handle at once, so that no pod has a backlog. A
// sender that waits gets exactly one outcome. A message without a waiting sender ends as handled, as dead in its queue,
// in the dead-letter worker's queue, or with an event and a count.
package dispatch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	"github.com/coracle-dev/coracle/pkg/systems/workers/spans"
)

// Node is the agent in this process.
type Node interface {
	// Accept hands over messages in order, and reports each outcome through Done. It does not block.
	Accept(list []*workers.Delivery)
}

// Config configures a Dispatcher. All fields are required except Spans.
type Config struct {
	Queues queue.Queues
	// Client reads pods and workers, and writes the status of workers.
	Client client.Interface
	// Local returns the agent of a node, or nil if it is not in this process.
	Local func(node string) Node
	// Connect returns the base URL of a node's API and a transport that authenticates to it.
	Connect func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
	// Server is the name of this server in the status of workers.
	Server string
	Events *events.Recorder
	Logger *slog.Logger
	Spans  *spans.Spans
}

// Message is a message from its sender, who may set Due and Expires.
type Message struct {
	queue.Message
	// Deadline and Done are set if the sender waits for the outcome. Done is called once if Send accepts the message. It
	// must not block. Parts means that the sender takes a reply in parts.
	Deadline time.Time
	Done     func(Outcome)
	Parts    bool
}

// Outcome is the end of a message whose sender waits.
type Outcome struct {
	workers.Outcome
	Pod      string
	Attempts int32
	// Parts, if set, is the reply, whose parts can be read as they come. The sender closes it. If the program fails in
	// the middle, or the deadline passes, Read returns a *BrokenError.
	Parts *io.PipeReader
}

// Dispatcher is safe for concurrent use.
type Dispatcher struct {
	c      Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	life    sync.Mutex // guards stopped; no other lock is taken while it is held
	stopped bool

	mu      sync.Mutex // taken before a state's lock
	pods    bool       // the informer of pods runs
	stops   []func()
	states  map[queue.Key]*state
	workers map[types.NamespacedName]*workers.Worker
}

// New returns a Dispatcher. Start begins its work.
func New(c Config) *Dispatcher {
	d := &Dispatcher{c: c, states: map[queue.Key]*state{}, workers: map[types.NamespacedName]*workers.Worker{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Start follows workers and, if messages are left from an earlier process, pods.
func (d *Dispatcher) Start(ctx context.Context) error {
	if err := d.followWorkers(ctx); err != nil {
		return err
	}
	for _, k := range d.c.Queues.Keys() {
		d.state(k).kick()
	}
	return nil
}

// Stop ends all deliveries to other machines, and waits for background work. Durable messages stay in their queues.
func (d *Dispatcher) Stop() {
	d.life.Lock()
	d.stopped = true
	d.life.Unlock()
	d.mu.Lock()
	stops := d.stops
	states := make([]*state, 0, len(d.states))
	for _, s := range d.states {
		states = append(states, s)
	}
	d.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	d.cancel()
	lost := 0
	for _, s := range states {
		lost += s.stop()
	}
	if lost > 0 {
		d.c.Logger.Warn("messages lost that are not kept on disk, as the server stops", "messages", lost)
	}
	d.wg.Wait()
}

// background runs f unless the Dispatcher has stopped.
func (d *Dispatcher) background(f func()) bool {
	d.life.Lock()
	defer d.life.Unlock()
	if d.stopped {
		return false
	}
	d.wg.Go(f)
	return true
}

// state returns the state of a queue. The first one starts following pods.
func (d *Dispatcher) state(k queue.Key) *state {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.states[k]
	if s == nil {
		s = newState(d, k)
		if w := d.workers[types.NamespacedName{Namespace: k.Namespace, Name: k.Worker}]; w != nil {
			s.configure(w)
		}
		d.states[k] = s
	}
	if !d.pods {
		d.pods = d.background(d.followPods)
	}
	return s
}

// forget removes the state of a queue without messages, pods and worker.
func (d *Dispatcher) forget(s *state) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	depth := d.c.Queues.Depth(s.key)
	if s.worker == nil && !s.running && depth.Waiting+depth.InFlight+depth.Dead == 0 &&
		len(s.pods)+len(s.flights)+len(s.waits) == 0 {
		s.halt()
		delete(d.states, s.key)
	}
}

// Send queues messages in order. The returned function blocks until messages are on disk that must be there, and
// returns an error for each message, as Queues.Append does. It must be called once. config is for a queue
// that this server has not seen yet. Messages with Done are not kept on disk: their senders wait.
func (d *Dispatcher) Send(k queue.Key, config *workers.Queue, list []Message) (accepted func() []error) {
	s := d.state(k)
	s.mu.Lock()
	if s.config == nil {
		s.config = config
	}
	c := *s.config
	now := time.Now()
	msgs := make([]queue.Message, len(list))
	for i := range list {
		m := &list[i]
		m.Arrived, m.Durable = now, m.Done == nil && c.Promise == workers.AtLeastOnce
		if m.Expires.IsZero() {
			m.Expires = now.Add(max(0, m.Due.Sub(now)) + c.MaxWait())
		}
		if m.Done != nil {
			s.waits[m.ID] = s.newWait(m)
		}
		msgs[i] = m.Message
	}
	s.last = now
	s.mu.Unlock()
	if c.Stream != "" {
		d.c.Queues.Place(k, c.Stream)
	}
	added := d.c.Queues.Append(k, queue.Limits{Messages: int(c.Limit)}, msgs)
	return func() []error {
		errs := added()
		s.accepted(list, errs)
		return errs
	}
}

// accepted counts messages, ends the waits for refused ones, and has the others delivered.
func (s *state) accepted(list []Message, errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, err := range errs {
		var duplicate *queue.DuplicateError
		switch {
		case err == nil:
			s.counts.accepted++
			continue
		case errors.As(err, &duplicate):
			s.counts.duplicate++
		default:
			s.counts.refused++
		}
		if w := s.waits[list[i].ID]; w != nil {
			if w.gone { // its deadline passed meanwhile, and the sender has an outcome
				errs[i] = nil
			}
			w.timer.Stop()
			delete(s.waits, list[i].ID)
		}
	}
	s.kickLocked()
	s.changed()
}

// Open has the queue's messages read if they are in a stream that this server does not keep yet, and returns why they
// cannot be read.
func (d *Dispatcher) Open(k queue.Key, c *workers.Queue) error {
	if c.Stream == "" {
		return nil
	}
	d.state(k)
	return d.c.Queues.Place(k, c.Stream)()
}

// Changed has the messages delivered that the queue has read from its stream, and its failure published.
func (d *Dispatcher) Changed(k queue.Key) {
	s := d.state(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kickLocked()
	s.changed()
}

// Cancel ends the wait of a sender. A message that no pod has is removed.
func (d *Dispatcher) Cancel(k queue.Key, id string) {
	d.mu.Lock()
	s := d.states[k]
	d.mu.Unlock()
	if s != nil {
		s.abandon(id, Outcome{Outcome: workers.Outcome{Failure: workers.HandlerTimeout, Text: "the sender has gone"}})
	}
}

// Purge removes the messages of a queue that no pod has, or only the dead ones, and returns their number.
func (d *Dispatcher) Purge(k queue.Key, dead bool) int {
	s := d.state(k)
	return s.purge(dead)
}

// Redrive has dead messages delivered again and returns their number. An empty ID means all of them.
func (d *Dispatcher) Redrive(k queue.Key, id string) int {
	s := d.state(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config == nil {
		return 0
	}
	n := d.c.Queues.Redrive(k, id, time.Now().Add(s.config.MaxWait()))
	s.kickLocked()
	s.changed()
	return n
}

// receives reports whether a pod can have messages: it is ready and does not terminate.
func receives(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Spec.NodeName == "" || p.Status.Phase != corev1.PodRunning {
		return false
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
