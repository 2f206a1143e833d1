package v1alpha1

const (
	// MaxBatch is how many messages one request can send, which together have at most MaxPayload bytes.
	MaxBatch = 1000
	// MaxBatchOutcomes limits the outcomes of a batch in JSON, in bytes.
	MaxBatchOutcomes = 4 << 20
)

// BatchMessage is a message of a batch, between API server and agent.
//
// +kubebuilder:object:generate=false
type BatchMessage struct {
	ID      string `json:"id"`
	Payload []byte `json:"payload"`
	Receipt string `json:"receipt,omitempty"`
}

// BatchOutcome is how a message of a batch ended, between agent and API server. Failure is empty for one that was
// accepted or, if the sender waits, has a reply.
//
// +kubebuilder:object:generate=false
type BatchOutcome struct {
	Failure     Failure `json:"failure,omitempty"`
	Text        string  `json:"text,omitempty"`
	ErrorType   string  `json:"errorType,omitempty"`
	ContentType string  `json:"contentType,omitempty"`
	Attempts    int32   `json:"attempts,omitempty"`
	Untouched   bool    `json:"untouched,omitempty"`
	Payload     []byte  `json:"payload,omitempty"`
}

// BatchResult is a line of the response to a batch, for the message on the same line of the request.
//
// +kubebuilder:object:generate=false
type BatchResult struct {
	ID  string `json:"id"`
	Pod string `json:"pod,omitempty"`
	// Code is the HTTP status code that the message would have got alone: 202 or, with a reply, 200.
	Code int `json:"code"`
	// Reply is the reply, if it is text, Binary if it is not.
	Reply  string `json:"reply,omitempty"`
	Binary []byte `json:"binary,omitempty"`
	// Reason and Message are as in a Status, for a message that failed.
	Reason  Failure `json:"reason,omitempty"`
	Message string  `json:"message,omitempty"`
}
