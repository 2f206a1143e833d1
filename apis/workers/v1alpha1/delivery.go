package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

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
