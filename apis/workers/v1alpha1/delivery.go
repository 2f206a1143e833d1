package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Delivery is a message that the API server hands to the agent in the same process, without an HTTP request.
//
// +kubebuilder:object:generate=false
type Delivery struct {
	BatchMessage
	Namespace, Pod     string
	UID                types.UID
	ContentType, Trace string
	// Deadline is until when the sender waits for the reply. It is zero if the sender does not wait.
	Deadline time.Time
	// Done is called exactly once, from any goroutine, possibly before the message is queued. It must not block.
	Done func(Delivered)
	// Cancel stops waiting for a reply. When it returns, Done has been called. The agent sets it; it is nil if Done
	// was called already.
	Cancel func()
}

// Delivered is the outcome of a Delivery.
//
// +kubebuilder:object:generate=false
type Delivered struct {
	BatchOutcome
	// Release frees the payload, which must not be used afterwards. It may be nil.
	Release func()
}
