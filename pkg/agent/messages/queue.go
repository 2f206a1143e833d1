package messages

import (
	"slices"
	"sync"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// Message is what a sender sends.
type Message struct {
	ID string
	// ContentType and Trace are the sender's, as they are.
	ContentType, Trace string
	// Attempts is how often it was given to programs before it came here.
	Attempts int32
	// Deadline is until when the sender waits for the reply; zero for none.
	Deadline time.Time
	// DeadLetter is why another worker failed to handle it.
	DeadLetter string
	// Receipt is needed to send it on.
	Receipt string
	payload *payload
}

// Outcome is how a message ended: with a reply, or with a Failure.
type Outcome struct {
	Failure workers.Failure
	// Text says more about a failure, ErrorType is the type of the error that the program reported.
	Text, ErrorType string
	ContentType     string
	Attempts        int32
	// Untouched is true if no program got the message, so that it may be sent elsewhere.
	Untouched bool
	body      *payload
}

type state int

const (
	waiting  state = iota
	delayed        // until its next attempt
	inFlight       // a program has it
	done
)

// entry is a message in a queue. The queue's lock guards it.
type entry struct {
	Message
	seq     uint64 // in the log; 0 if it is not there
	state   state
	expires time.Time    // it must not wait in the queue any longer
	reply   chan Outcome // takes one; nil if nobody waits
	holder  string       // the container that has it
	timer   *time.Timer  // of its attempt, or of its delay

	abandoned bool // nobody waits for the reply any longer: there is no further attempt
}

// events are what a queue tells its manager, with the queue's lock held: the functions must not call it.
type events interface {
	changed()
	attempt(e *entry)
	finished(e *entry)
	// undeliverable is called with a message that nobody waits for and that ends without success.
	undeliverable(e *entry, o Outcome)
	// moved is called with a message that must go to another pod.
	moved(e *entry)
}

// taker waits for messages.
type taker struct {
	holder string
	want   int         // how many more it takes
	got    chan handed // has room for all that it wants; closed when there are no more
	ended  bool        // got is closed
}

// handed is an attempt: a message, and how often it has been given to a program.
type handed struct {
	*entry
	attempt int32
}

// queue is the queue of one pod. Messages wait in the order in which they came.
type queue struct {
	config workers.Queue
	events events

	mu       sync.Mutex
	closed   bool
	running  string // the container that runs; "" for none
	list     []*entry
	later    map[*entry]struct{} // messages that are delayed
	flight   map[string]*entry
	takers   []*taker
	last     time.Time   // of the last message
	overdue  *time.Timer // of the first in list
	counters counters
}

// counters count since the queue was made.
type counters struct {
	accepted, delivered, redelivered, succeeded, failed, deadLettered, refused uint64
}

// firstDelay is the pause before a second attempt, doubled with each that follows up to longestDelay.
const (
	firstDelay   = 100 * time.Millisecond
	longestDelay = 30 * time.Second
)

func newQueue(c workers.Queue, e events) *queue {
	return &queue{config: c, events: e, flight: map[string]*entry{}, later: map[*entry]struct{}{}}
}

// offer accepts a message. front is for one that was accepted before. Otherwise it returns why it is not accepted.
func (q *queue) offer(e *entry, front bool) workers.Failure {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return workers.NoReceiver
	}
	if !front && len(q.list)+len(q.later) >= int(q.config.Limit) {
		q.counters.refused++
		return workers.QueueFull
	}
	if _, known := q.flight[e.ID]; known {
		q.counters.refused++
		return workers.QueueFull // an ID that is in use: the sender of it repeats itself
	}
	now := time.Now()
	if e.expires.IsZero() {
		e.expires = now.Add(q.config.MaxWait())
	}
	q.last = now
	q.counters.accepted++
	q.enqueue(e, front)
	return ""
}

func (q *queue) enqueue(e *entry, front bool) {
	e.state = waiting
	if front {
		q.list = slices.Insert(q.list, 0, e)
	} else {
		q.list = append(q.list, e)
	}
	q.dispatch()
	q.watchOverdue()
	q.events.changed()
}

// watchOverdue sets the timer for the message that has waited longest.
func (q *queue) watchOverdue() {
	if len(q.list) == 0 {
		if q.overdue != nil {
			q.overdue.Stop()
			q.overdue = nil
		}
		return
	}
	if q.overdue == nil {
		q.overdue = time.AfterFunc(time.Until(q.list[0].expires), q.expire)
	}
}

// expire ends the messages that have waited too long.
func (q *queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.overdue = nil
	now := time.Now()
	q.list = slices.DeleteFunc(q.list, func(e *entry) bool {
		if e.expires.After(now) {
			return false
		}
		q.end(e, Outcome{Failure: workers.HandlerTimeout, Text: "no program took the message within " + q.config.MaxWait().String(), Untouched: e.Attempts == 0})
		return true
	})
	q.watchOverdue()
	q.events.changed()
}

// dispatch gives messages to takers.
func (q *queue) dispatch() {
	for len(q.takers) > 0 && len(q.list) > 0 && len(q.flight) < int(q.config.Concurrency) {
		t := q.takers[0]
		if t.want--; t.want == 0 || len(q.takers) > 1 {
			q.takers = q.takers[1:]
			if t.want > 0 { // after the others
				q.takers = append(q.takers, t)
			}
		}
		if t.holder == "" {
			t.holder = q.running
		}
		e := q.list[0]
		q.list[0] = nil
		q.list = q.list[1:]
		if len(q.list) == 0 {
			q.list = nil
		}
		q.watchOverdue()
		e.state, e.holder = inFlight, t.holder
		e.Attempts++
		q.flight[e.ID] = e
		q.counters.delivered++
		if e.Attempts > 1 {
			q.counters.redelivered++
		}
		q.events.attempt(e)
		attempt := e.Attempts
		e.timer = time.AfterFunc(q.config.Timeout(), func() {
			q.resolve(e.ID, attempt, Outcome{Failure: workers.HandlerTimeout, Text: "the program took longer than " + q.config.Timeout().String()})
		})
		t.got <- handed{e, attempt}
	}
}

// take waits for the next message until stop is closed, or the queue is; then its entry is nil.
func (q *queue) take(stop <-chan struct{}) handed {
	t := q.newTaker(1)
	q.more(t, 1)
	select {
	case h := <-t.got:
		return h
	case <-stop:
	}
	q.noMore(t)
	for h := range t.got {
		q.giveBack(h)
	}
	return handed{}
}

// newTaker returns a taker that can hold most messages.
func (q *queue) newTaker(most int) *taker {
	q.mu.Lock()
	defer q.mu.Unlock()
	return &taker{holder: q.running, got: make(chan handed, most)}
}

// more has a taker take n more messages, of which it never holds more than it can.
func (q *queue) more(t *taker, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.ended {
		return
	}
	if q.closed {
		t.ended = true
		close(t.got)
		return
	}
	if n = min(n, cap(t.got)-len(t.got)-t.want); n <= 0 {
		return
	}
	if t.want == 0 {
		q.takers = append(q.takers, t)
	}
	t.want += n
	q.dispatch()
}

// noMore ends a taker: there are no messages after those in its channel.
func (q *queue) noMore(t *taker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.takers, t); i >= 0 {
		q.takers = slices.Delete(q.takers, i, i+1)
	}
	if !t.ended {
		t.ended = true
		close(t.got)
	}
}

// tryTake returns the next message if there is one to be handled now.
func (q *queue) tryTake() handed {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.list) == 0 || len(q.flight) >= int(q.config.Concurrency) {
		return handed{}
	}
	t := &taker{holder: q.running, want: 1, got: make(chan handed, 1)}
	q.takers = append(q.takers, t)
	q.dispatch()
	return <-t.got
}

// giveBack returns a message that could not be given to its taker after all.
func (q *queue) giveBack(h handed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.state == inFlight && h.Attempts == h.attempt {
		q.returned(h.entry)
	}
}

// returned undoes an attempt: the program has not got the message.
func (q *queue) returned(e *entry) {
	e.timer.Stop()
	delete(q.flight, e.ID)
	e.Attempts--
	q.counters.delivered--
	if e.Attempts > 0 {
		q.counters.redelivered--
	}
	q.again(e, 0, true)
}

// resolve ends an attempt with a reply or a failure. attempt 0 means the one in progress. It reports whether the message is known, and
// releases the reply's memory if not.
func (q *queue) resolve(id string, attempt int32, o Outcome) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.flight[id]
	if e == nil || attempt != 0 && e.Attempts != attempt {
		if o.body != nil {
			o.body.release()
		}
		return false
	}
	q.settle(e, o)
	q.dispatch()
	q.events.changed()
	return true
}

// settle ends an attempt.
func (q *queue) settle(e *entry, o Outcome) {
	e.timer.Stop()
	delete(q.flight, e.ID)
	o.Attempts = e.Attempts
	again := o.Failure != "" && q.config.Promise == workers.AtLeastOnce && e.Attempts < q.config.MaxAttempts &&
		!e.abandoned && (e.Deadline.IsZero() || time.Now().Before(e.Deadline))
	if !again {
		q.end(e, o)
		return
	}
	delay := min(firstDelay<<min(e.Attempts-1, 16), longestDelay)
	if o.Failure == workers.ReceiverLost {
		delay = 0
	}
	q.again(e, delay, false)
}

// again puts a message back into the queue after a delay, or moves it if the queue takes no more.
func (q *queue) again(e *entry, delay time.Duration, front bool) {
	switch {
	case q.closed && e.reply != nil:
		q.end(e, Outcome{Failure: workers.NoReceiver, Text: "the pod terminates", Untouched: e.Attempts == 0 || q.config.Promise == workers.AtLeastOnce})
	case q.closed:
		e.state = done
		q.events.moved(e)
	case delay == 0:
		q.enqueue(e, front)
	default:
		e.state = delayed
		q.later[e] = struct{}{}
		e.timer = time.AfterFunc(delay, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			if e.state == delayed {
				delete(q.later, e)
				q.enqueue(e, true)
			}
		})
	}
}

// end is the end of a message.
func (q *queue) end(e *entry, o Outcome) {
	e.state = done
	o.Attempts = e.Attempts
	switch {
	case o.Failure == "":
		q.counters.succeeded++
	case e.reply != nil:
		q.counters.failed++
	}
	if e.reply != nil {
		e.reply <- o
	} else if o.body != nil {
		o.body.release()
	}
	if e.reply == nil && o.Failure != "" {
		q.events.undeliverable(e, o)
		return
	}
	q.events.finished(e)
}

// abandon ends a message that its sender does not wait for any longer. If a program has it, its reply is dropped.
func (q *queue) abandon(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch e.state {
	case waiting:
		if i := slices.Index(q.list, e); i >= 0 {
			q.list = slices.Delete(q.list, i, i+1)
		}
	case delayed:
		e.timer.Stop()
		delete(q.later, e)
	case inFlight:
		e.abandoned = true
		return
	case done:
		return
	}
	q.counters.failed++
	e.state = done
	q.events.finished(e)
	q.watchOverdue()
	q.events.changed()
}

// observe is called with the pod's container. Messages that another one, or one that has ended, had are lost.
func (q *queue) observe(container string, runs bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running == container && runs {
		return
	}
	var lost []*entry
	for _, e := range q.flight {
		if e.holder != container && e.holder != "" || !runs {
			lost = append(lost, e)
		} else if e.holder == "" {
			e.holder = container // taken before the container was known to run
		}
	}
	q.running = ""
	if runs {
		q.running = container
	}
	if len(lost) == 0 {
		return
	}
	slices.SortFunc(lost, func(a, b *entry) int { return a.expires.Compare(b.expires) })
	for _, e := range lost {
		q.settle(e, Outcome{Failure: workers.ReceiverLost, Text: "the program ended while it had the message"})
	}
	q.events.changed()
}

// close refuses further messages and moves those that wait to other pods. Messages in flight go on.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	rest := q.list
	q.list = nil
	for e := range q.later {
		e.timer.Stop()
		rest = append(rest, e)
	}
	clear(q.later)
	for _, t := range q.takers {
		t.ended = true
		close(t.got)
	}
	q.takers = nil
	for _, e := range rest {
		q.again(e, 0, false)
	}
	q.watchOverdue()
	q.events.changed()
}

// release closes the queue and ends all messages: nothing of the pod is left.
func (q *queue) release() {
	q.close()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.flight {
		q.settle(e, Outcome{Failure: workers.ReceiverLost, Text: "the pod was removed while its program had the message"})
	}
}

// report is the state of the queue.
func (q *queue) report() (depth, flight int, oldest time.Time, last time.Time, c counters, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) > 0 {
		oldest = q.list[0].expires.Add(-q.config.MaxWait())
	}
	return len(q.list) + len(q.later), len(q.flight), oldest, q.last, q.counters, q.closed
}
