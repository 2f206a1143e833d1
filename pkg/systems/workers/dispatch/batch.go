package dispatch

import (
	"bytes"
	"crypto/md5" //nolint:gosec // in the format of SQS
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// gathers reports whether waiting messages wait for further ones, so that the batch is fuller.
func (s *state) gathers(b *workers.WorkerBatch, d *queue.Depth, now time.Time) bool {
	if b == nil || b.WindowSeconds == 0 || d.Waiting-d.Delayed >= int(b.Size) || d.Bytes >= workers.MaxCall ||
		len(s.waits) > 0 {
		return false
	}
	if s.window.IsZero() {
		s.window = now.Add(time.Duration(b.WindowSeconds) * time.Second)
	}
	return now.Before(s.window)
}

// giveBatch gives a pod a batch of messages. It returns false if there are none.
func (s *state) giveBatch(p *pod, local map[Node][]*workers.Delivery, ends *[]func()) bool {
	c := &call{push: p.config.Mode == workers.ModePush, key: s.key}
	var list []*flight
	for len(list) < int(p.config.Batch.Size) {
		m, ok := s.claim(p, ends)
		if !ok {
			break
		}
		span := s.d.c.Spans.Start(s.key, p.name, p.node, &m)
		if !c.add(&m) {
			s.d.c.Queues.Return(s.key, m.ID, queue.Result{Untouched: true})
			break
		}
		list = append(list, s.fly(p, m, span))
	}
	if len(list) == 0 {
		return false
	}
	s.window = time.Time{}
	d := &workers.Delivery{
		ID: uuid.NewString(), Namespace: s.key.Namespace, Pod: p.name, UID: p.uid, Attempt: 1,
		Deadline: time.Now().Add(p.config.Timeout() + time.Minute), // the answer is read as a whole
		Done:     func(o workers.Outcome) { s.finishBatch(p, list, o) },
	}
	d.Payload, d.ContentType = c.end()
	cancel := s.hand(p, d, local)
	for _, f := range list {
		f.cancel = cancel
	}
	return true
}

// finishBatch handles the outcome of a batch: each message succeeds or fails by itself.
func (s *state) finishBatch(p *pod, list []*flight, o workers.Outcome) {
	failed := map[string]bool{}
	for _, f := range list {
		failed[f.m.ID] = false
	}
	if o.Failure == "" {
		if err := readAnswer(o.Payload, failed); err != nil {
			o.Failure, o.ErrorType, o.Text = workers.HandlerFailed, "InvalidBatchAnswer", err.Error()
		}
	}
	o.Free()
	outcomes, ends := make([]workers.Outcome, len(list)), make([]func(), len(list))
	for i, f := range list {
		each := workers.Outcome{Failure: o.Failure, ErrorType: o.ErrorType, Text: o.Text, Untouched: o.Untouched}
		if o.Failure == "" && failed[f.m.ID] {
			each.Failure, each.Text = workers.HandlerFailed, "the program named the message in batchItemFailures"
		}
		if outcomes[i] = each; f.span != nil {
			s.d.c.Spans.End(f.span, &each, describe(each))
		}
	}
	s.mu.Lock()
	p.flight--
	for i, f := range list {
		ends[i] = s.land(f, outcomes[i])
	}
	s.changed()
	s.kickLocked()
	s.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// readAnswer sets failed to true for each message that the answer to a batch names, as AWS Lambda reads it
// (Implementing partial batch responses). No message failed if the answer is empty, a JSON scalar such as null, or an
// object without batchItemFailures. After an error the caller treats all messages as failed.
func readAnswer(answer []byte, failed map[string]bool) error {
	answer = bytes.TrimSpace(answer)
	if len(answer) == 0 || answer[0] != '{' && answer[0] != '[' && json.Valid(answer) {
		return nil
	}
	var a struct {
		Failures []struct {
			ID string `json:"itemIdentifier"`
		} `json:"batchItemFailures"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf(`the answer is not {"batchItemFailures": [{"itemIdentifier": "ID"}]}: %w`, err)
	}
	for _, f := range a.Failures {
		if _, ok := failed[f.ID]; !ok {
			return fmt.Errorf("the itemIdentifier %.64q in the answer is not the ID of a message in the batch", f.ID)
		}
		failed[f.ID] = true
	}
	return nil
}

// call is the JSON of a batch: AWS Lambda's event of an SQS queue or, if push is set, CloudEvents.
type call struct {
	push bool
	key  queue.Key
	body bytes.Buffer
}

// add adds a message. It returns false if the batch has no room for it.
func (c *call) add(m *queue.Message) bool {
	before := c.body.Len()
	var record any
	if c.push {
		record = c.event(m)
	} else {
		record = c.record(m)
	}
	switch {
	case before > 0:
		c.body.WriteByte(',')
	case c.push:
		c.body.WriteByte('[')
	default:
		c.body.WriteString(`{"Records":[`)
	}
	e := json.NewEncoder(&c.body)
	e.SetEscapeHTML(false)
	_ = e.Encode(record) // cannot fail for these fields
	if before > 0 && c.body.Len() > workers.MaxCall-len(`]}`) {
		c.body.Truncate(before)
		return false
	}
	return true
}

// end returns the batch and its type.
func (c *call) end() (payload []byte, contentType string) {
	if c.push {
		c.body.WriteByte(']')
		return c.body.Bytes(), event.BatchType
	}
	c.body.WriteString(`]}`)
	return c.body.Bytes(), "application/json"
}

// record is a message in AWS Lambda's event of an SQS queue.
type record struct {
	ID         string                       `json:"messageId"`
	Receipt    string                       `json:"receiptHandle"`
	Body       string                       `json:"body"`
	System     attributes                   `json:"attributes"`
	Attributes map[string]map[string]string `json:"messageAttributes"`
	MD5        string                       `json:"md5OfBody"`
	Source     string                       `json:"eventSource"`
	ARN        string                       `json:"eventSourceARN"`
	Region     string                       `json:"awsRegion"`
}

type attributes struct {
	Attempts string `json:"ApproximateReceiveCount"`
	Sent     string `json:"SentTimestamp"`
	Sender   string `json:"SenderId"`
	Received string `json:"ApproximateFirstReceiveTimestamp"`
	Key      string `json:"MessageGroupId,omitempty"`
	DedupID  string `json:"MessageDeduplicationId,omitempty"`
}

// region and the account in arn have the forms that programs may check.
const region, arn = "us-east-1", "arn:aws:sqs:us-east-1:000000000000:"

func (c *call) record(m *queue.Message) *record {
	first := m.Arrived // a later attempt does not know when the first one was
	if m.Attempts == 1 {
		first = time.Now()
	}
	attempts := strconv.Itoa(int(m.Attempts))
	r := &record{
		ID: m.ID, Receipt: m.ID + "-" + attempts, Body: string(m.Payload), Attributes: map[string]map[string]string{},
		System: attributes{
			Attempts: attempts, Sent: strconv.FormatInt(m.Arrived.UnixMilli(), 10), Sender: "coracle",
			Received: strconv.FormatInt(first.UnixMilli(), 10), Key: m.OrderKey, DedupID: m.DedupID,
		},
		Source: "aws:sqs", ARN: arn + c.key.Worker + c.key.Pod, Region: region,
	}
	set := func(name, text string) {
		if text != "" {
			r.Attributes[name] = map[string]string{"stringValue": text, "dataType": "String"}
		}
	}
	set("Content-Type", m.ContentType)
	set("traceparent", m.Trace)
	set(workers.HeaderDeadLetter, m.DeadLetter)
	if !utf8.Valid(m.Payload) {
		r.Body = base64.StdEncoding.EncodeToString(m.Payload)
		set("Content-Encoding", "base64")
	}
	sum := md5.Sum([]byte(r.Body)) //nolint:gosec // in the format of SQS
	r.MD5 = hex.EncodeToString(sum[:])
	return r
}

// cloudEvent is a message in CloudEvents' batched content mode.
type cloudEvent struct {
	Version     string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Time        string          `json:"time"`
	ContentType string          `json:"datacontenttype,omitempty"`
	Key         string          `json:"partitionkey,omitempty"`
	Trace       string          `json:"traceparent,omitempty"`
	DeadLetter  string          `json:"deadletter,omitempty"`
	Attempt     int32           `json:"attempt"`
	Data        json.RawMessage `json:"data,omitempty"`
	Binary      []byte          `json:"data_base64,omitempty"`
}

func (c *call) event(m *queue.Message) *cloudEvent {
	e := &cloudEvent{
		Version: "1.0", ID: m.ID, Source: event.Source(c.key.Namespace, c.key.Worker+c.key.Pod), Type: event.Type,
		Time: m.Arrived.UTC().Format(time.RFC3339Nano), ContentType: m.ContentType, Key: m.OrderKey, Trace: m.Trace,
		DeadLetter: m.DeadLetter, Attempt: m.Attempts,
	}
	switch isJSON := m.ContentType == "" || strings.Contains(m.ContentType, "json"); {
	case isJSON && json.Valid(m.Payload):
		e.Data = m.Payload
	case !isJSON && strings.HasPrefix(m.ContentType, "text/") && utf8.Valid(m.Payload):
		e.Data, _ = json.Marshal(string(m.Payload)) // cannot fail
	default:
		e.Binary = m.Payload
	}
	return e
}
