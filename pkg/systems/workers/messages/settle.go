package messages

import (
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// resolve ends an attempt with a reply or a failure; attempt 0 means the current one. If the message or this attempt is
// not in flight, it releases the reply's memory and returns false.
func (q *queue) resolve(id string, attempt int32, o Outcome) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.flight[id]
	if e == nil || attempt != 0 && e.Attempts != attempt {
		o.release()
		return false
	}
	q.settle(e, o)
	q.dispatch()
	q.events.changed()
	return true
}

// settle ends an attempt. A failed AtLeastOnce message with attempts left is queued again after a backoff, or at once
// if its receiver was lost. The caller holds q.mu.
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

// again requeues a message after a delay. If the queue is closed, the message moves to another pod, or fails with
// NoReceiver if its sender waits for a reply.
func (q *queue) again(e *entry, delay time.Duration, front bool) {
	switch {
	case q.closed && e.reply != nil:
		q.end(e, Outcome{
			Failure:   workers.NoReceiver,
			Text:      "the pod terminates",
			Untouched: e.Attempts == 0 || q.config.Promise == workers.AtLeastOnce,
		})
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

// end finishes a message: its waiting sender gets the outcome; without one, a failure is undeliverable.
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
		e.reply.answer(o)
	} else {
		o.release()
	}
	if e.reply == nil && o.Failure != "" {
		q.events.undeliverable(e, o)
		return
	}
	q.events.finished(e)
}
