package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

// receiversFor is how long the receivers of a service are cached. A removed pod refuses messages, which then go to
// another one.
const receiversFor = 100 * time.Millisecond

type streamMessage struct {
	of                     *messageStream
	id, contentType, trace string
	wait                   bool // the sender waits for the reply
	deadline               time.Time
	payload                []byte
	pod                    *corev1.Pod // the receiver on the node in this process

	// The stream's lock guards the following fields.
	held      int    // bytes that count against the sender's flow
	stop      func() // ends the wait for a reply; may be nil
	refused   bool   // the node in this process refused it, and forward sends it
	cancelled bool
	answered  bool
}

func (c *messageStream) route(m *streamMessage) {
	if now := time.Now(); len(c.receivers) == 0 || now.Sub(c.since) > receiversFor {
		c.receivers, c.since = c.candidates(), now
	}
	if len(c.receivers) > 0 {
		p := c.receivers[rand.IntN(len(c.receivers))]
		if node := c.localNode(p.Spec.NodeName); node != nil {
			m.pod, c.node = p, node
			if c.batch = append(c.batch, m); len(c.batch) == streamBatch {
				c.deliver()
			}
			return
		}
	}
	c.deliver() // before the wait for a slot, which may be long
	select {
	case c.forwards <- struct{}{}:
		go func() {
			defer func() { <-c.forwards }()
			m.forward()
		}()
	case <-c.ctx.Done():
		m.fail(c.ctx.Err())
	}
}

func (m *streamMessage) delivery() *workers.Delivery {
	d := &workers.Delivery{
		BatchMessage: workers.BatchMessage{ID: uuid.NewString(), Payload: m.payload}, Namespace: m.pod.Namespace,
		Pod: m.pod.Name, UID: m.pod.UID,
		ContentType: m.contentType, Trace: m.trace, Done: m.done,
	}
	if m.wait {
		d.Deadline = m.deadline
	} else {
		d.Receipt = m.of.receipt(m.pod, m.contentType, m.payload)
	}
	return d
}

// delivered is called when the node has stored the message, whose bytes then count against the node's budget.
func (m *streamMessage) delivered(d *workers.Delivery) {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if !m.answered && !m.refused {
		m.stop = d.Cancel
		m.drop()
	}
}

// done gets the outcome from the node in this process. It must not block, since the caller may hold a queue's lock.
func (m *streamMessage) done(o workers.Delivered) {
	r, _, _ := m.of.on.Target()
	switch {
	case o.Untouched && (o.Failure == workers.NoReceiver || o.Failure == workers.QueueFull && r.Plural == "services") &&
		m.refuse():
		go m.forward()
	case o.Failure != "":
		err := failed(o.Failure, o.Failure.Code(), "pod "+m.pod.Name+": "+o.Text)
		err.ErrStatus.Details.Causes[0].Field = o.ErrorType
		m.fail(err)
	case m.wait:
		m.answer(&streamAnswer{
			Head:    frame.Head{Kind: frame.Reply, ContentType: o.ContentType, Attempt: o.Attempts},
			payload: o.Payload,
			release: o.Release,
		})
	default:
		m.answer(&streamAnswer{Head: frame.Head{Kind: frame.Accepted}})
	}
}

// refuse records that the node has refused the message. It returns false if the sender has cancelled it.
func (m *streamMessage) refuse() bool {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.refused = !m.cancelled
	return m.refused
}

// forward sends the message like a single request: to another node, or to a pod that starts for it.
func (m *streamMessage) forward() {
	ctx, cancel := context.WithDeadline(m.of.ctx, m.deadline)
	defer cancel()
	m.of.mu.Lock()
	m.stop = cancel
	if m.cancelled {
		cancel()
	}
	m.of.mu.Unlock()
	head := http.Header{"Content-Type": {m.contentType}}
	head.Set(workers.HeaderID, uuid.NewString())
	if m.trace != "" {
		head.Set("Traceparent", m.trace)
	}
	w := &streamResponse{header: http.Header{}}
	err := m.of.try(ctx, w, head, m.payload, m.wait, m.deadline)
	switch {
	case err != nil:
		m.fail(err)
	case w.code == http.StatusAccepted:
		m.answer(&streamAnswer{Head: frame.Head{Kind: frame.Accepted}})
	default:
		attempt, _ := strconv.ParseInt(w.header.Get(workers.HeaderAttempt), 10, 32)
		m.answer(&streamAnswer{
			Head:    frame.Head{Kind: frame.Reply, ContentType: w.header.Get("Content-Type"), Attempt: int32(attempt)},
			payload: w.body.Bytes(),
		})
	}
}

// streamResponse buffers the response to a forwarded message, of at most workers.MaxPayload bytes.
type streamResponse struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (w *streamResponse) Header() http.Header         { return w.header }
func (w *streamResponse) WriteHeader(code int)        { w.code = code }
func (w *streamResponse) Write(b []byte) (int, error) { return w.body.Write(b) }

func (m *streamMessage) fail(err error) {
	status := responsewriters.ErrorToAPIStatus(err)
	status.APIVersion, status.Kind = "v1", "Status"
	text, err := json.Marshal(status)
	if err != nil {
		text = nil
	}
	m.answer(&streamAnswer{
		Head:    frame.Head{Kind: frame.Failure, ContentType: "application/json", ErrorType: string(status.Reason)},
		payload: text[:min(len(text), frame.MaxPayload)],
	})
}

// answer sends the answer and ends the message. It is called once.
func (m *streamMessage) answer(a *streamAnswer) {
	m.of.mu.Lock()
	m.answered = true
	delete(m.of.pending, m.id)
	m.drop()
	m.of.mu.Unlock()
	a.ID = m.id
	m.of.answers <- a // the channel has room
}

func (m *streamMessage) cancel() {
	m.of.mu.Lock()
	m.cancelled = true
	stop := m.stop
	m.of.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// drop returns the message's bytes to its sender's flow control. The caller holds the stream's lock.
func (m *streamMessage) drop() {
	if m.held > 0 {
		m.of.on.Drop(m.held)
		m.held = 0
	}
}
