package v1alpha1

const (
	// MaxBatch is the maximum number of messages in a request. Together they have at most MaxPayload bytes.
	MaxBatch = 1000
	// MaxBatchReplies is the maximum size of the replies to a batch together, in bytes.
	MaxBatchReplies = MaxPayload
)

// BatchResult is a line of the response to a batch. It belongs to the message on the same line of the request.
//
// +kubebuilder:object:generate=false
type BatchResult struct {
	ID  string `json:"id"`
	Pod string `json:"pod,omitempty"`
	// Duplicate means that ID is an earlier message with the same sender's ID.
	Duplicate bool `json:"duplicate,omitempty"`
	// Code is the HTTP status code as for a single message: 202 or, with a reply, 200, or a failure's code.
	Code int `json:"code"`
	// Reply is a text reply, Binary any other reply.
	Reply  string `json:"reply,omitempty"`
	Binary []byte `json:"binary,omitempty"`
	// Reason and Message are set for a failed message, as in a Status.
	Reason  Failure `json:"reason,omitempty"`
	Message string  `json:"message,omitempty"`
}
