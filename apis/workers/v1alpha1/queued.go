package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// QueuedMessages is the response to a GET of a Worker's subresource queue.
//
// +kubebuilder:object:generate=false
type QueuedMessages struct {
	Items []QueuedMessage `json:"items"`
	// Continue is the parameter for the next messages; empty if there are no more.
	Continue string `json:"continue,omitempty"`
}

// QueuedMessage is a message in a worker's queue.
//
// +kubebuilder:object:generate=false
type QueuedMessage struct {
	ID string `json:"id"`
	// DedupID is the sender's ID of the message.
	DedupID string `json:"dedupID,omitempty"`
	// Key is the key whose messages are delivered one at a time, in order.
	Key string `json:"key,omitempty"`
	// State is waiting, delayed, blocked, in flight or dead. A blocked message waits for earlier ones with its key.
	State string `json:"state"`
	// Pod is the only pod that may get the message; empty means any pod of the worker.
	Pod         string      `json:"pod,omitempty"`
	Attempts    int32       `json:"attempts"`
	Size        int         `json:"size"`
	ContentType string      `json:"contentType,omitempty"`
	Arrived     metav1.Time `json:"arrived"`
	// Expires is when a message that still waits in the queue fails. It is nil for a dead message: the queue keeps that
	// until a user redrives or purges it.
	Expires *metav1.Time `json:"expires,omitempty"`
	// Due is when the delay of a delayed message ends.
	Due *metav1.Time `json:"due,omitempty"`
	// Error is why the last attempt failed, DeadLetter why another worker failed to handle the message.
	Error      string `json:"error,omitempty"`
	DeadLetter string `json:"deadLetter,omitempty"`
	// Payload is set for a single message.
	Payload []byte `json:"payload,omitempty"`
}

// QueueChange is the response to a purge or redrive: the number of messages.
//
// +kubebuilder:object:generate=false
type QueueChange struct {
	Messages int `json:"messages"`
}
