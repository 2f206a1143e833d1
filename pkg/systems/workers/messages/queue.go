package messages

import (
	"slices"
	"sync"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// handTime is how long a message waits for the pod's program to ask for it. Then another pod may have it.
const handTime = 10 * time.Second

// queue holds the messages of one pod: those that its program has, and up to as many that it may take next.
type queue struct {
	config workers.Queue
	more   func() // called with mu held when a message waits; may be nil

	mu      sync.Mutex
	closed  bool
	running string // the container that runs; "" for none
	list    []*entry
	flight  map[string]*entry
	takers  []*taker
	overdue *time.Timer // runs expire for the first in list
}

func newQueue(c workers.Queue) *queue { return &queue{config: c, flight: map[string]*entry{}} }

// offer queues a message, or returns the reason why it refuses the message. The server sends no more messages than the
// program may handle at once; more can come from a server that has started again.
func (q *queue) offer(e *entry) (f workers.Failure, text string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return workers.NoReceiver, "the pod terminates"
	case len(q.list) >= int(q.config.Concurrency):
		return workers.QueueFull, "the pod's program has not taken earlier messages"
	case q.flight[e.ID] != nil:
		return workers.QueueFull, "the pod's program has a message with this ID"
	}
	e.expires = time.Now().Add(handTime)
	q.enqueue(e, false)
	return "", ""
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
	if q.more != nil {
		q.more()
	}
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

// expire sends back the messages that no program has taken.
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
			Failure: workers.NoReceiver, Text: "the program took no message within " + handTime.String(), Untouched: true,
		})
		return true
	})
	q.watchOverdue()
}

// abandon ends a message whose server has gone. If a program has the message, its reply is dropped.
func (q *queue) abandon(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.list, e); i >= 0 {
		q.list = slices.Delete(q.list, i, i+1)
		q.end(e, Outcome{Failure: workers.ReceiverLost, Text: "the server has gone"})
		q.watchOverdue()
	}
}

// observe is called with the pod's container and whether it runs. Messages in flight in another container, or in one
// that ended, fail with ReceiverLost.
func (q *queue) observe(container string, runs bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running == container && runs {
		return
	}
	q.running = ""
	if runs {
		q.running = container
	}
	for _, e := range q.flight {
		if e.holder != container && e.holder != "" || !runs {
			q.end(e, Outcome{Failure: workers.ReceiverLost, Text: "the program ended while it had the message"})
		} else if e.holder == "" {
			e.holder = container // taken before the container was known to run
		}
	}
}

// close refuses further messages and sends the waiting ones back. Programs may still answer messages in flight.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	for _, t := range q.takers {
		t.ended = true
		close(t.got)
	}
	rest := q.list
	q.takers, q.list = nil, nil
	for _, e := range rest {
		q.end(e, Outcome{Failure: workers.NoReceiver, Text: "the pod terminates", Untouched: true})
	}
	q.watchOverdue()
}

// release closes the queue and ends the messages in flight with ReceiverLost: the pod was removed.
func (q *queue) release() {
	q.close()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.flight {
		q.end(e, Outcome{Failure: workers.ReceiverLost, Text: "the pod was removed while its program had the message"})
	}
}

// resolve ends the message with this ID that a program has. If there is none, it releases the reply's memory and
// returns false.
func (q *queue) resolve(id string, o Outcome) bool { return q.resolved(id, nil, o) }

// answers returns the message with this ID whose reply in parts begins, and when its attempt ends at the latest; nil if
// there is none, or its reply has begun.
func (q *queue) answers(id string) (e *entry, until time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e = q.flight[id]; e == nil || e.answering {
		return nil, until
	}
	e.answering = true
	return e, e.until
}

// resolveEntry is resolve for this delivery, which may have ended.
func (q *queue) resolveEntry(e *entry, o Outcome) bool { return q.resolved(e.ID, e, o) }

func (q *queue) resolved(id string, only *entry, o Outcome) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.flight[id]
	if e == nil || only != nil && e != only || only == nil && e.answering {
		o.release()
		return false
	}
	q.end(e, o)
	q.dispatch()
	if q.more != nil {
		q.more()
	}
	return true
}

// end finishes a message, which is not in list any more. The caller holds q.mu.
func (q *queue) end(e *entry, o Outcome) {
	if e.state == done {
		o.release()
		return
	}
	if e.state == inFlight {
		e.timer.Stop()
		delete(q.flight, e.ID)
	}
	e.state = done
	e.payload.release()
	e.notify(o)
}
