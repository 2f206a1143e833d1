package workers

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// receiversFor is how long the queue of a connection's messages is cached.
const receiversFor = 100 * time.Millisecond

type streamMessage struct {
	of *messageStream
	// The sender has chosen id, messageID identifies the message in its queue.
	id, messageID, contentType, trace, dedupID, orderKey string
	wait                                                 bool // the sender waits for the reply
	deadline                                             time.Time
	payload                                              []byte

	// The stream's lock guards the following fields.
	held   int       // bytes that count against the sender's flow
	key    queue.Key // set when queued is
	queued bool
}

// deliver queues the batch.
func (c *messageStream) deliver() {
	if len(c.batch) == 0 {
		return
	}
	list := c.batch
	c.batch = nil
	if now := time.Now(); c.to.config == nil || now.Sub(c.since) > receiversFor {
		var err error
		if c.to, err = c.find(c.ctx); err != nil {
			c.to.config = nil
			for _, m := range list {
				m.fail(err)
			}
			return
		}
		c.since = now
	}
	msgs := make([]dispatch.Message, len(list))
	c.mu.Lock()
	for i, m := range list {
		m.messageID, m.key, m.queued = uuid.NewString(), c.to.key, true
		msgs[i].Message = queue.Message{
			ID: m.messageID, DedupID: m.dedupID, OrderKey: m.orderKey, ContentType: m.contentType, Trace: m.trace,
			Payload: m.payload, Target: c.to.pod,
		}
		if m.wait {
			msgs[i].Deadline, msgs[i].Done = m.deadline, m.done
		}
	}
	c.mu.Unlock()
	to, accepted := c.to, c.dispatch.Send(c.to.key, c.to.config, msgs)
	if to.config.Promise == workers.AtMostOnce {
		c.accepted(list, to, accepted())
		return
	}
	go func() { c.accepted(list, to, accepted()) }() // read further messages while the disk syncs these
}

// accepted answers messages that were not accepted, or whose senders wait for no more.
func (c *messageStream) accepted(list []*streamMessage, to address, errs []error) {
	for i, err := range errs {
		var repeated *queue.DuplicateError
		switch m := list[i]; {
		case errors.As(err, &repeated):
			m.answer(&streamAnswer{Head: frame.Head{Kind: frame.Repeated}, payload: []byte(repeated.ID)})
		case err != nil:
			m.fail(refused(to, err))
		case m.wait:
			c.mu.Lock()
			m.drop() // the queue counts its bytes
			c.mu.Unlock()
		default:
			m.answer(&streamAnswer{Head: frame.Head{Kind: frame.Accepted}, payload: []byte(m.messageID)})
		}
	}
}

// done answers a message with its outcome.
func (m *streamMessage) done(o dispatch.Outcome) {
	if o.Failure != "" {
		o.Free()
		m.fail(failure(&o))
		return
	}
	m.answer(&streamAnswer{
		Head:    frame.Head{Kind: frame.Reply, ContentType: o.ContentType, Attempt: o.Attempts},
		payload: o.Payload,
		release: o.Release,
	})
}

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
	delete(m.of.pending, m.id)
	m.drop()
	m.of.mu.Unlock()
	a.ID = m.id
	m.of.answers <- a // the channel has room
}

func (m *streamMessage) cancel() {
	m.of.mu.Lock()
	key, queued := m.key, m.queued
	m.of.mu.Unlock()
	if queued {
		m.of.dispatch.Cancel(key, m.messageID)
	}
}

// drop returns the message's bytes to its sender's flow control. The caller holds the stream's lock.
func (m *streamMessage) drop() {
	if m.held > 0 {
		m.of.on.Drop(m.held)
		m.held = 0
	}
}
