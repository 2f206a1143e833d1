package v1alpha1

const (
	// MaxBatch is the maximum number of messages in a request. Together they have at most MaxPayload bytes.
	MaxBatch = 1000
	// MaxBatchOutcomes is the maximum size of the outcomes of a batch in JSON, in bytes.
	MaxBatchOutcomes = 4 << 20
)

// BatchMessage is a message of a batch, from the API server to an agent.
//
// +kubebuilder:object:generate=false
type BatchMessage struct {
	ID      string `json:"id"`
	Payload []byte `json:"payload"`
	Receipt string `json:"receipt,omitempty"`
}

// BatchOutcome is the outcome of a message of a batch, from an agent to the API server. Failure is empty if the
// message was accepted or, if the sender waits, has a reply.
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

// BatchResult is a line of the response to a batch. It belongs to the message on the same line of the request.
//
// +kubebuilder:object:generate=false
type BatchResult struct {
	ID  string `json:"id"`
	Pod string `json:"pod,omitempty"`
	// Code is the HTTP status code as for a single message: 202 or, with a reply, 200, or a failure's code.
	Code int `json:"code"`
	// Reply is a text reply, Binary any other reply.
	Reply  string `json:"reply,omitempty"`
	Binary []byte `json:"binary,omitempty"`
	// Reason and Message are set for a failed message, as in a Status.
	Reason  Failure `json:"reason,omitempty"`
	Message string  `json:"message,omitempty"`
}
