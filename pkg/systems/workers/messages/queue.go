package messages

import (
	"slices"
	"sync"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// queue is the queue of one pod, in order of arrival.
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
	last     time.Time   // arrival of the last message
	overdue  *time.Timer // runs expire for the first in list
	counters counters
}

// firstDelay is the pause before a second attempt, doubled for each later attempt up to longestDelay.
const (
	firstDelay   = 100 * time.Millisecond
	longestDelay = 30 * time.Second
)

func newQueue(c workers.Queue, e events) *queue {
	return &queue{config: c, events: e, flight: map[string]*entry{}, later: map[*entry]struct{}{}}
}

// offer queues a message and returns "", or the reason why it refuses the message. front is for a message that was
// accepted earlier: it goes first, and the queue's limit does not apply.
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
		return workers.QueueFull // duplicate: a message with this ID is in flight
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
		q.end(e, Outcome{
			Failure:   workers.HandlerTimeout,
			Text:      "no program took the message within " + q.config.MaxWait().String(),
			Untouched: e.Attempts == 0,
		})
		return true
	})
	q.watchOverdue()
	q.events.changed()
}

// abandon ends a message whose sender no longer waits. If a program has the message, its reply is dropped.
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

// observe is called with the pod's container and whether it runs. Messages in flight in another container, or in one
// that ended, fail with ReceiverLost.
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

// close refuses further messages and moves the waiting ones to other pods; if a sender waits for the reply, it gets
// NoReceiver. Programs may still answer messages in flight.
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

// release closes the queue and ends the attempts in flight with ReceiverLost: the pod was removed.
func (q *queue) release() {
	q.close()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.flight {
		q.settle(e, Outcome{Failure: workers.ReceiverLost, Text: "the pod was removed while its program had the message"})
	}
}

// report returns the state of the queue. oldest is zero if no message waits.
func (q *queue) report() (depth, flight int, oldest time.Time, last time.Time, c counters, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) > 0 {
		oldest = q.list[0].expires.Add(-q.config.MaxWait())
	}
	return len(q.list) + len(q.later), len(q.flight), oldest, q.last, q.counters, q.closed
}
