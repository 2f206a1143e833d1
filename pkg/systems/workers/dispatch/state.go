package dispatch

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// firstDelay is the pause before a second attempt, doubled for each later attempt up to longestDelay. restTime is how
// long a pod gets no messages after its node or program took none.
const (
	firstDelay   = 100 * time.Millisecond
	longestDelay = 30 * time.Second
	restTime     = time.Second
)

// state is what the dispatcher knows of one queue.
type state struct {
	d   *Dispatcher
	key queue.Key

	mu      sync.Mutex
	config  *workers.Queue  // nil until a worker, a pod or a sender brings it
	worker  *workers.Worker // nil if there is none
	deleted bool            // the worker was deleted
	pods    []*pod
	next    int // the pod that is tried first
	flights map[string]*flight
	waits   map[string]*wait
	running bool // run is active
	again   bool // run must look once more
	timer   *time.Timer
	window  time.Time // when a batch that is not full is given; zero unless messages wait for it
	moving  bool      // forward is active
	last    time.Time // when a message last arrived, or an attempt ended
	counts  counts
	status  publisher
}

// pod is a ready pod.
type pod struct {
	uid        types.UID
	name, node string
	config     *workers.Queue
	slots      int       // the messages or batches that it may have
	flight     int       // the messages or batches that it has
	rest       time.Time // until when it gets none
}

// flight is a message that a pod has.
type flight struct {
	m      queue.Message
	pod    *pod
	cancel context.CancelFunc // ends a delivery to another machine; nil for the node in this process
	whole  *whole             // a reply in parts for another worker
	span   trace.Span         // may be nil
}

// wait is a sender that waits.
type wait struct {
	deadline time.Time
	done     func(Outcome)
	timer    *time.Timer
	gone     bool // the sender does not wait any more, while a pod has the message
	parts    bool // the sender takes a reply in parts
	// reply takes the parts of the reply, once it has begun. done was called then.
	reply *io.PipeWriter
}

type counts struct {
	accepted, delivered, redelivered, succeeded, failed, refused, deadLettered, dropped, duplicate uint64
}

func newState(d *Dispatcher, k queue.Key) *state {
	return &state{d: d, key: k, flights: map[string]*flight{}, waits: map[string]*wait{}}
}

func (s *state) newWait(m *Message) *wait {
	id := m.ID
	return &wait{deadline: m.Deadline, done: m.Done, parts: m.Parts, timer: time.AfterFunc(time.Until(m.Deadline), func() {
		s.abandon(id, s.late())
	})}
}

// late returns the outcome of a message whose sender's deadline has passed.
func (s *state) late() Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pods) == 0 && len(s.flights) == 0 {
		return Outcome{Outcome: workers.Outcome{
			Failure: workers.NoReceiver, Text: "the sender's deadline has passed: " + s.why(), Untouched: true,
		}}
	}
	return Outcome{Outcome: workers.Outcome{Failure: workers.HandlerTimeout, Text: "the sender's deadline has passed"}}
}

// why returns why no pod is ready, from the worker's condition. The caller holds s.mu.
func (s *state) why() string {
	if s.worker != nil {
		c := meta.FindStatusCondition(s.worker.Status.Conditions, workers.ConditionReady)
		if c != nil && c.Status == metav1.ConditionFalse {
			return c.Message
		}
	}
	return "no pod is ready"
}

// abandon ends the wait of a sender. Its message is removed, or its reply dropped if a pod has the message.
func (s *state) abandon(id string, o Outcome) {
	s.mu.Lock()
	w := s.waits[id]
	if w == nil || w.gone {
		s.mu.Unlock()
		return
	}
	w.timer.Stop()
	if f := s.flights[id]; f != nil {
		w.gone = true
		o.Pod, o.Attempts = f.pod.name, f.m.Attempts
	} else if s.d.c.Queues.Withdraw(s.key, id) {
		delete(s.waits, id)
		s.kickLocked() // the next message with its key need not wait for it any more
	} else {
		w.gone = true // it is being queued or claimed
	}
	s.counts.failed++
	s.changed()
	s.mu.Unlock()
	w.end(o)
}

func (s *state) kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kickLocked()
}

// kickLocked has run look at the queue again.
func (s *state) kickLocked() {
	if s.running {
		s.again = true
	} else {
		s.running = true
		if !s.d.background(s.run) {
			s.running = false
		}
	}
}

// run gives messages to pods until none can be given.
func (s *state) run() {
	for {
		s.mu.Lock()
		s.again = false
		ends := s.overdue()
		s.changed() // delayed messages may have become due
		local := map[Node][]*workers.Delivery{}
		for s.give(local, &ends) {
		}
		s.mu.Unlock()
		for _, end := range ends {
			end()
		}
		for node, list := range local {
			node.Accept(list)
		}
		s.mu.Lock()
		if !s.again {
			s.running = false
			s.plan()
			last := s.worker == nil && len(s.pods) == 0
			s.mu.Unlock()
			if last {
				s.d.forget(s)
			}
			return
		}
		s.mu.Unlock()
	}
}

// overdue ends the messages that have waited too long.
func (s *state) overdue() (ends []func()) {
	for _, m := range s.d.c.Queues.Overdue(s.key) {
		o := workers.Outcome{Failure: workers.HandlerTimeout, Text: "no program took the message before it expired"}
		if m.Error != "" {
			o.Text += ", after " + m.Error
		}
		s.d.c.Spans.End(s.d.c.Spans.Start(s.key, "", "", &m), &o, o.Text)
		ends = append(ends, s.end(m, "", o))
	}
	return ends
}

// finish handles the outcome of a delivery. The pod's slot stays taken until the reply is queued or published.
func (s *state) finish(f *flight, o workers.Outcome) {
	o = f.whole.outcome(o)
	to := s.repliesTo(f.m.ID)
	if to == nil || o.Failure != "" || len(o.Payload) == 0 {
		s.finished(f, o)
	} else if !s.d.background(func() { s.finished(f, to(f.m, o)) }) {
		o.Free() // the server stops: it delivers a durable message again when it starts
	}
}

func (s *state) finished(f *flight, o workers.Outcome) {
	if f.span != nil {
		s.d.c.Spans.End(f.span, &o, describe(o))
	}
	s.mu.Lock()
	f.pod.flight--
	end := s.land(f, o)
	s.changed()
	s.kickLocked()
	s.mu.Unlock()
	end()
}

// land ends an attempt, and the message unless it gets another one. The caller holds s.mu, and calls the returned
// function without it.
func (s *state) land(f *flight, o workers.Outcome) (end func()) {
	delete(s.flights, f.m.ID)
	s.last = time.Now()
	end = func() {}
	w := s.waits[f.m.ID]
	switch {
	case w != nil && w.reply != nil:
		end = s.end(f.m, f.pod.name, o)
	case o.Untouched && o.Failure != "" && !s.deleted && (w == nil || !w.gone):
		f.pod.rest = time.Now().Add(restTime)
		s.d.c.Queues.Return(s.key, f.m.ID, queue.Result{Untouched: true})
	case o.Failure != "" && s.retries(f.m, w):
		delay := min(firstDelay<<min(f.m.Attempts-1, 16), longestDelay)
		if o.Failure == workers.ReceiverLost {
			delay = 0
		}
		s.d.c.Queues.Return(s.key, f.m.ID, queue.Result{Delay: delay, Error: describe(o)})
	default:
		end = s.end(f.m, f.pod.name, o)
	}
	return end
}

func describe(o workers.Outcome) string {
	if o.ErrorType != "" {
		return fmt.Sprintf("%s: %s: %s", o.Failure, o.ErrorType, o.Text)
	}
	return string(o.Failure) + ": " + o.Text
}

// retries reports whether a failed message gets another attempt.
func (s *state) retries(m queue.Message, w *wait) bool {
	return !s.deleted && s.config != nil && s.config.Promise == workers.AtLeastOnce && m.Attempts < s.config.MaxAttempts &&
		(w == nil || !w.gone && time.Now().Before(w.deadline))
}

// plan sets the timer for the next delayed, expiring or resting message. The caller holds s.mu.
func (s *state) plan() {
	at := s.d.c.Queues.Next(s.key)
	if s.d.c.Queues.Depth(s.key).Waiting > 0 {
		for _, p := range s.pods {
			if p.flight < p.slots && p.rest.After(time.Now()) && (at.IsZero() || p.rest.Before(at)) {
				at = p.rest
			}
		}
	}
	if s.window.After(time.Now()) && (at.IsZero() || s.window.Before(at)) {
		at = s.window
	}
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if !at.IsZero() {
		s.timer = time.AfterFunc(time.Until(at), s.kick)
	}
}

// set adds or updates a ready pod.
func (s *state) set(p *corev1.Pod, c *workers.Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker == nil && !s.deleted {
		s.config = c
	}
	for _, have := range s.pods {
		if have.uid == p.UID {
			return
		}
	}
	s.pods = append(s.pods, &pod{uid: p.UID, name: p.Name, node: p.Spec.NodeName, config: c, slots: int(c.Concurrency)})
	s.changed()
	s.kickLocked()
}

// unset removes a pod that is not ready. If the pod is gone, so are the messages that it has and those for it alone.
func (s *state) unset(p *corev1.Pod, gone bool) {
	s.mu.Lock()
	for i, have := range s.pods {
		if have.uid == p.UID {
			s.pods = append(s.pods[:i:i], s.pods[i+1:]...)
			break
		}
	}
	var ends []func()
	if gone {
		for _, f := range s.flights {
			if f.pod.uid == p.UID && f.cancel != nil {
				f.cancel()
			}
		}
		for _, m := range s.d.c.Queues.Retarget(s.key, p.Name) {
			ends = append(ends, s.end(m, p.Name, workers.Outcome{
				Failure: workers.NoReceiver, Text: "the pod was deleted", Untouched: m.Attempts == 0,
			}))
		}
	}
	s.changed()
	s.kickLocked()
	s.mu.Unlock()
	for _, end := range ends {
		end()
	}
	if gone {
		s.d.forget(s)
	}
}

// purge removes the messages that no pod has, or only the dead ones.
func (s *state) purge(dead bool) int {
	s.mu.Lock()
	var ends []func()
	n := s.d.c.Queues.Purge(s.key, dead, func(id string) {
		if w := s.waits[id]; w != nil {
			w.timer.Stop()
			delete(s.waits, id)
			ends = append(ends, func() {
				w.done(Outcome{Outcome: workers.Outcome{Failure: workers.NoReceiver, Text: "the queue was purged"}})
			})
		}
	})
	s.changed()
	s.mu.Unlock()
	for _, end := range ends {
		end()
	}
	return n
}

// halt stops the timers. The caller holds s.mu.
func (s *state) halt() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.status.halt()
}

// stop ends the waits of all senders, and returns the number of messages that are lost with the process.
func (s *state) stop() (lost int) {
	s.mu.Lock()
	s.halt()
	depth := s.d.c.Queues.Depth(s.key)
	if s.config == nil || s.config.Promise == workers.AtMostOnce {
		lost = depth.Waiting + depth.InFlight
	}
	var ids []string
	for id := range s.waits {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.abandon(id, Outcome{Outcome: workers.Outcome{Failure: workers.ReceiverLost, Text: "the server stops"}})
	}
	return max(0, lost-len(ids))
}
