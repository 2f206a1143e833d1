package messages

import (
	"io"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// Message is one attempt to have a program handle a message.
type Message struct {
	ID string
	// ContentType and Trace are passed on unchanged.
	ContentType, Trace string
	// Attempt counts the attempts from 1.
	Attempt int32
	// Deadline is when the sender stops waiting for the reply; zero without a deadline.
	Deadline time.Time
	// DeadLetter is the reason why another worker failed to handle it.
	DeadLetter string
	// Begin is as in workers.Delivery. It may be nil.
	Begin   func(contentType string) io.Writer
	payload *payload
}

// Outcome is the end of a delivery: a reply, or a Failure.
type Outcome struct {
	Failure workers.Failure
	// Text describes a failure. ErrorType is the type of the error that the program reported.
	Text, ErrorType string
	ContentType     string
	// Untouched is true if no program got the message.
	Untouched bool
	body      *payload
}

type state int

const (
	waiting  state = iota
	inFlight       // a program has it
	done
)

// entry is a message in a pod's queue. The queue's lock guards it.
type entry struct {
	Message
	state   state
	expires time.Time // when it goes back to the server
	// notify is called once, with the queue's lock held: it must not block.
	notify func(Outcome)
	holder string      // the container that has it
	timer  *time.Timer // timeout of the program
	until  time.Time   // when timer runs
	// answering means that the program sends its reply in parts.
	answering bool
}

// release frees the memory of a reply without a receiver.
func (o *Outcome) release() {
	if o.body != nil {
		o.body.release()
	}
}
