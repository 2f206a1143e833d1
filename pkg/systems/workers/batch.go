package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// lines returns the non-empty lines of the payload as messages.
func lines(all dispatch.Message) (msgs []dispatch.Message, err error) {
	for line := range bytes.SplitSeq(all.Payload, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		if len(msgs) == workers.MaxBatch {
			return nil, errLargeBatch()
		}
		m := all
		m.ID, m.Payload = uuid.NewString(), bytes.Clone(line) // a message must not keep the whole batch in memory
		if all.DedupID != "" {
			m.DedupID = all.DedupID + "-" + strconv.Itoa(len(msgs)+1)
			if err := checkText("id", m.DedupID, workers.MaxDedupID); err != nil {
				return nil, err
			}
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}

func errLargeBatch() error {
	return apierrors.NewRequestEntityTooLargeError("a batch has at most " + strconv.Itoa(workers.MaxBatch) + " messages")
}

// sendBatch sends the messages in the payload, and responds with one line each, in the same order.
func (s sender) sendBatch(ctx context.Context, w http.ResponseWriter, all dispatch.Message) error {
	split := lines
	if t, _, err := mime.ParseMediaType(all.ContentType); err == nil && t == event.BatchType {
		split = cloudEvents
	}
	msgs, err := split(all)
	if err != nil {
		return err
	}
	if len(msgs) == 0 {
		return apierrors.NewBadRequest("the batch has no messages: each line of the body is one, or each CloudEvent of an " +
			"array with the type " + event.BatchType)
	}
	a, err := s.find(ctx)
	if err != nil {
		return err
	}
	out := make([]workers.BatchResult, len(msgs))
	var waits sync.WaitGroup
	var size atomic.Int64
	for i := range msgs {
		msgs[i].Target = a.pod
		if out[i].ID = msgs[i].ID; !all.Deadline.IsZero() {
			waits.Add(1)
			msgs[i].Done = func(o dispatch.Outcome) {
				defer waits.Done()
				reply(&out[i], &o, &size)
			}
		}
	}
	for i, err := range s.dispatch.Send(a.key, a.config, msgs)() {
		var repeated *queue.DuplicateError
		switch {
		case errors.As(err, &repeated):
			out[i].ID, out[i].Duplicate, out[i].Code = repeated.ID, true, http.StatusAccepted
		case err != nil:
			var status *apierrors.StatusError
			if errors.As(refused(a, err), &status) {
				r := &status.ErrStatus
				out[i].Code, out[i].Reason, out[i].Message = int(r.Code), workers.Failure(r.Reason), r.Message
			}
			if msgs[i].Done != nil {
				waits.Done()
			}
		case msgs[i].Done == nil:
			out[i].Code = http.StatusAccepted
		}
	}
	stop := context.AfterFunc(ctx, func() {
		for i := range msgs {
			s.dispatch.Cancel(a.key, msgs[i].ID)
		}
	})
	waits.Wait()
	stop()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	results := json.NewEncoder(w)
	results.SetEscapeHTML(false)
	for i := range out {
		if err := results.Encode(&out[i]); err != nil {
			return nil //nolint:nilerr // the sender is gone
		}
	}
	return nil
}

// reply records the outcome of a message of a batch, whose replies have size bytes so far.
func reply(r *workers.BatchResult, o *dispatch.Outcome, size *atomic.Int64) {
	defer o.Free()
	r.Pod = o.Pod
	switch {
	case o.Failure != "":
		r.Code, r.Reason, r.Message = o.Failure.Code(), o.Failure, failure(o).ErrStatus.Message
	case size.Add(int64(len(o.Payload))) > workers.MaxBatchReplies:
		r.Code, r.Reason = workers.HandlerFailed.Code(), workers.HandlerFailed
		r.Message = "the replies to the batch have more than " + strconv.Itoa(workers.MaxBatchReplies) + " bytes"
	case utf8.Valid(o.Payload):
		r.Code, r.Reply = http.StatusOK, string(o.Payload)
	default:
		r.Code, r.Binary = http.StatusOK, bytes.Clone(o.Payload)
	}
}
