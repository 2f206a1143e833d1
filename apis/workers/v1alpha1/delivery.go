package v1alpha1

import (
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// MaxReply is the maximum size of a reply in parts, in bytes.
	MaxReply = 256 << 20
	// HeaderParts is "true" if the API server takes a reply in parts, and in the response of an agent that sends one. A
	// sender that sets "false" gets the reply as a whole.
	HeaderParts = "Coracle-Message-Parts"
	// HeaderErrorText is a trailer with the error of a reply that broke off, beside HeaderFailure and HeaderErrorType.
	HeaderErrorText = "Coracle-Message-Error"
)

// HeaderEventTrace is the traceparent of a CloudEvent (Distributed Tracing Extension).
const HeaderEventTrace = "Ce-Traceparent"

// Delivery is one attempt to have a pod's program handle a message. A server hands it to the agent in the same process,
// without an HTTP request.
//
// +kubebuilder:object:generate=false
type Delivery struct {
	ID                             string
	Payload                        []byte
	Namespace, Pod                 string
	UID                            types.UID
	ContentType, Trace, DeadLetter string
	// Attempt counts the attempts from 1.
	Attempt int32
	// Deadline is until when the sender waits for the reply. It is zero if the sender does not wait.
	Deadline time.Time
	// Begin is called at most once, before Done, if the reply comes in parts. A write to the result passes on a part and
	// blocks while the sender is slow. It fails when the sender has gone, and when Done was called, which ends the reply.
	// Begin does not block. It is nil if the sender takes a reply only as a whole.
	Begin func(contentType string) io.Writer
	// Done is called exactly once, from any goroutine, possibly before Accept returns. It must not block.
	Done func(Outcome)
}

// Outcome is the end of a Delivery: a reply, or a Failure.
//
// +kubebuilder:object:generate=false
type Outcome struct {
	Failure Failure
	// Text describes a failure. ErrorType is the type of the error that the program reported.
	Text, ErrorType string
	// Untouched means that no program got the message.
	Untouched   bool
	ContentType string
	Payload     []byte
	// Release frees the payload, which must not be used afterwards. It may be nil.
	Release func()
}

// Free calls Release.
func (o *Outcome) Free() {
	if o.Release != nil {
		o.Release()
		o.Release = nil
	}
}
