package workers

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
)

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
		var e event.Event
		if err := d.Decode(&e); err != nil {
			return bad(err)
		}
		if len(msgs) == workers.MaxBatch {
			return nil, errLargeBatch()
		}
		m := all
		m.ID = uuid.NewString()
		if m.Payload, m.ContentType = e.Payload(); len(m.ContentType) > maxContentType {
			return bad(fmt.Errorf("datacontenttype has at most %d bytes", maxContentType))
		}
		if m.DedupID, err = eventID(&e, &all); err != nil {
			return bad(err)
		}
		if e.Trace != "" {
			m.Trace = validTrace(e.Trace)
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

// eventID returns the ID by which the queue knows an event, or "".
func eventID(e *event.Event, all *dispatch.Message) (string, error) {
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
