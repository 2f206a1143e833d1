// Package event decodes CloudEvents in JSON (JSON Event Format for CloudEvents 1.0), and the shorter objects of
// `coracle send --objects`.
package event

import (
	"encoding/json"
	"strings"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

const (
	// Type is the type of the CloudEvents in which programs get messages.
	Type = "dev.coracle.message"
	// BatchType is the media type of an array of CloudEvents (JSON Event Format for CloudEvents 1.0, section 4).
	BatchType = "application/cloudevents-batch+json"
)

// Source is the source of the CloudEvents of a worker, or of a pod with a queue of its own.
func Source(namespace, name string) string {
	return "/apis/" + workers.GroupVersion.Group + "/namespaces/" + namespace + "/workers/" + name
}

// Event has the attributes of a CloudEvent that its message uses.
type Event struct {
	ID, Source      string
	DataContentType string
	PartitionKey    *string
	// Key replaces PartitionKey in the shorter objects of `coracle send --objects`.
	Key   *string
	Trace string `json:"traceparent"`
	Data  json.RawMessage
	// Binary replaces Data.
	Binary []byte `json:"data_base64"`
}

// Payload returns the message: Binary, the text in Data unless its type is JSON, or Data as it is.
func (e *Event) Payload() (payload []byte, contentType string) {
	var text string
	switch contentType = e.DataContentType; {
	case e.Binary != nil:
		return e.Binary, contentType
	case contentType == "":
		return e.Data, "application/json"
	case !strings.Contains(contentType, "json") && json.Unmarshal(e.Data, &text) == nil:
		return []byte(text), contentType
	}
	return e.Data, contentType
}
