package messages

import (
	"sync/atomic"
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
	expires time.Time   // it must not wait in the queue any longer
	reply   *waiter     // nil if no sender waits
	holder  string      // the container that has it
	timer   *time.Timer // of its attempt, or of its delay

	abandoned bool // no sender waits for the reply any longer: no further attempt
}

// waiter gets the outcomes of a message. Only the first one counts.
type waiter struct {
	notified atomic.Bool
	// notify must not block: the queue's lock is held.
	notify func(Outcome)
	timer  *time.Timer // of the sender's deadline; may be nil
}

// answer reports the outcome, or gives its memory back if another one was reported before.
func (w *waiter) answer(o Outcome) {
	if w.once(o) && w.timer != nil {
		w.timer.Stop()
	}
}

func (w *waiter) once(o Outcome) bool {
	first := w.notified.CompareAndSwap(false, true)
	if first {
		w.notify(o)
	} else {
		o.release()
	}
	return first
}

// release frees the memory of a reply without a receiver.
func (o *Outcome) release() {
	if o.body != nil {
		o.body.release()
	}
}

// events are what a queue reports to its manager, with the queue's lock held: the functions must not call it.
type events interface {
	changed()
	attempt(e *entry)
	finished(e *entry)
	// undeliverable is called with a message that failed and whose sender does not wait.
	undeliverable(e *entry, o Outcome)
	// moved is called with a message that must go to another pod.
	moved(e *entry)
}

// counters count since the queue was made.
type counters struct {
	accepted, delivered, redelivered, succeeded, failed, deadLettered, refused uint64
}
