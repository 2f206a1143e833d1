package messages

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// mostBatchBytes bounds an encoded batch: workers.MaxPayload bytes of payloads in base64, and 512 bytes for the other
// fields of each message.
const mostBatchBytes = workers.MaxPayload*4/3 + workers.MaxBatch*512

// maxBatchText bounds the error text of each outcome in a batch, in bytes; longer text is cut.
const maxBatchText = 256

// ReceiveBatch reads messages from a request of the API server, delivers them, and responds with their outcomes.
// common holds the fields that they share.
func (m *Manager) ReceiveBatch(ctx context.Context, w http.ResponseWriter, req *http.Request, t Target, common Message,
	wait bool) {
	bytes := m.bytes
	if r := m.receiver(t.UID); r != nil {
		bytes = r.bytes
	}
	const hold = 2 * mostBatchBytes // the encoded and the decoded batch
	if !bytes.take(hold) {
		discard(req)
		respondFailure(w, Outcome{Failure: workers.QueueFull, Text: errNoMemory.Error(), Untouched: true})
		return
	}
	list, err := readBatch(req)
	if err != nil {
		bytes.give(hold, true)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := make([]Outcome, len(list))
	msgs, which := make([]Message, 0, len(list)), make([]int, 0, len(list))
	for i := range list {
		msg := common
		n := int64(len(list[i].Payload)) + overhead
		if !bytes.take(n) {
			out[i] = Outcome{Failure: workers.QueueFull, Text: errNoMemory.Error(), Untouched: true}
			continue
		}
		msg.ID, msg.Receipt, msg.payload = list[i].ID, list[i].Receipt, &payload{data: list[i].Payload, bytes: bytes, held: n}
		msgs, which = append(msgs, msg), append(which, i)
	}
	bytes.give(hold, true)
	for i, o := range m.DeliverAll(ctx, t, msgs, wait) {
		out[which[i]] = o
	}
	respondBatch(w, out)
}

func readBatch(req *http.Request) (list []workers.BatchMessage, err error) {
	text, err := bounded.All(req.Body, mostBatchBytes)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if len(list) > workers.MaxBatch || slices.ContainsFunc(list, func(m workers.BatchMessage) bool { return m.ID == "" }) {
		return nil, errors.New("a batch has at most " + strconv.Itoa(workers.MaxBatch) + " messages, each with an ID")
	}
	return list, nil
}

func respondBatch(w http.ResponseWriter, out []Outcome) {
	results := make([]workers.BatchOutcome, len(out))
	size := 0
	for i, o := range out {
		if o.body != nil {
			if n := len(o.body.data); size+n <= workers.MaxPayload {
				size += n
			} else {
				o.body.release()
				o = Outcome{
					Failure:   workers.HandlerFailed,
					ErrorType: "TooLarge",
					Text:      "the replies to the batch have more than " + strconv.Itoa(workers.MaxPayload) + " bytes",
					Attempts:  o.Attempts,
				}
			}
		}
		o.Text = clip(o.Text, maxBatchText)
		results[i] = workers.BatchOutcome{
			Failure:     o.Failure,
			Text:        o.Text,
			ErrorType:   o.ErrorType,
			ContentType: o.ContentType,
			Attempts:    o.Attempts,
			Untouched:   o.Untouched,
		}
		if o.body != nil {
			results[i].Payload = o.body.data
			defer o.body.release()
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(results)
}
