package workers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
)

// typeEvents is the media type of an array of CloudEvents (JSON Event Format for CloudEvents 1.0, section 4).
const typeEvents = "application/cloudevents-batch+json"

// event has the attributes of a CloudEvent that its message uses.
type event struct {
	ID, Source      string
	DataContentType string
	PartitionKey    *string
	Data            json.RawMessage
	Binary          []byte `json:"data_base64"`
}

// cloudEvents returns the CloudEvents of the payload as messages.
func cloudEvents(all dispatch.Message) (msgs []dispatch.Message, err error) {
	bad := func(err error) ([]dispatch.Message, error) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("event %d of the batch: %v", len(msgs)+1, err))
	}
	d := json.NewDecoder(bytes.NewReader(all.Payload))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, apierrors.NewBadRequest("the body is not a JSON array of CloudEvents, as its type says")
	}
	for d.More() {
		var e event
		if err := d.Decode(&e); err != nil {
			return bad(err)
		}
		if len(msgs) == workers.MaxBatch {
			return nil, errLargeBatch()
		}
		m := all
		m.ID, m.Payload, m.ContentType = uuid.NewString(), e.Data, e.DataContentType
		if len(m.ContentType) > maxContentType {
			return bad(fmt.Errorf("datacontenttype has at most %d bytes", maxContentType))
		}
		var text string
		switch {
		case e.Binary != nil:
			m.Payload = e.Binary
		case m.ContentType == "":
			m.ContentType = "application/json"
		case !strings.Contains(m.ContentType, "json") && json.Unmarshal(e.Data, &text) == nil:
			m.Payload = []byte(text)
		}
		if m.DedupID, err = e.dedupID(&all); err != nil {
			return bad(err)
		}
		if e.PartitionKey != nil {
			m.OrderKey = *e.PartitionKey
			if err := checkText("partitionkey", m.OrderKey, workers.MaxOrderKey); err != nil {
				return bad(err)
			}
		}
		msgs = append(msgs, m)
	}
	if _, err := d.Token(); err != nil {
		return bad(err)
	}
	return msgs, nil
}

func (e *event) dedupID(all *dispatch.Message) (string, error) {
	switch {
	case all.DedupID != "":
		return "", apierrors.NewBadRequest("events have IDs of their own: leave out the id of the batch")
	case e.ID == "" || e.Source == "":
		return "", apierrors.NewBadRequest("a CloudEvent needs an id and a source")
	case !all.Deadline.IsZero():
		return "", nil
	}
	id := e.Source + " " + e.ID
	return id, checkText("id", id, workers.MaxDedupID)
}
