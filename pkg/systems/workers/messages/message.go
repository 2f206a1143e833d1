package messages

import (
	"sync/atomic"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// Message is a message from its sender.
type Message struct {
	ID string
	// ContentType and Trace are passed on unchanged.
	ContentType, Trace string
	// Attempts counts the attempts to deliver it on other nodes.
	Attempts int32
	// Deadline is when the sender stops waiting for the reply; zero without a deadline.
	Deadline time.Time
	// DeadLetter is the reason why another worker failed to handle it.
	DeadLetter string
	// Receipt permits the node to forward the message.
	Receipt string
	payload *payload
}

// Outcome is the end of a message: a reply, or a Failure.
type Outcome struct {
	Failure workers.Failure
	// Text describes a failure. ErrorType is the type of the error that the program reported.
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
	expires time.Time   // end of its time in the queue
	reply   *waiter     // nil if no sender waits for the reply
	holder  string      // the container that has it
	timer   *time.Timer // timeout of its attempt, or its delay

	abandoned bool // the sender no longer waits: no further attempt
}

// waiter passes the first outcome of a message to its sender; later ones are released.
type waiter struct {
	notified atomic.Bool
	// notify must not block: the queue's lock is held.
	notify func(Outcome)
	timer  *time.Timer // of the sender's deadline; may be nil
}

// answer reports the outcome, or releases its memory if another one was reported before.
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

// events are the callbacks of a queue. They run with the queue's lock held and must not call the queue.
type events interface {
	changed()
	attempt(e *entry)
	finished(e *entry)
	// undeliverable is called with a message that failed and has no waiting sender.
	undeliverable(e *entry, o Outcome)
	// moved is called with a message that must go to another pod.
	moved(e *entry)
}

// counters count from the creation of the queue.
type counters struct {
	accepted, delivered, redelivered, succeeded, failed, deadLettered, refused uint64
}
