package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Delivery is a message that the API server gives to the agent in its own process, without a request.
//
// +kubebuilder:object:generate=false
type Delivery struct {
	BatchMessage
	Namespace, Pod     string
	UID                types.UID
	ContentType, Trace string
	// Deadline is until when the sender waits for the reply; zero if it wants none.
	Deadline time.Time
	// Done is called once, by any goroutine, perhaps before the message is queued. It must not block.
	Done func(Delivered)
	// Cancel ends the waiting for a reply, after which Done has been called. The agent sets it; nil if Done was called
	// already.
	Cancel func()
}

// Delivered is how a Delivery ended.
//
// +kubebuilder:object:generate=false
type Delivered struct {
	BatchOutcome
	// Release gives the memory of the payload back, which must not be used afterwards; nil if there is none.
	Release func()
}
