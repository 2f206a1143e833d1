package dispatch

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// maxHops bounds the replies that lead from one message to the next, so that a loop of workers ends.
const maxHops = 16

// repliesTo returns what sends the reply to a message to a worker or a NATS subject, and returns the outcome of the
// message then; nil means nothing.
func (s *state) repliesTo(id string) func(queue.Message, workers.Outcome) workers.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.config
	switch {
	case c == nil || s.deleted || s.waits[id] != nil:
		return nil
	case c.RepliesSubject != "":
		return func(m queue.Message, o workers.Outcome) workers.Outcome {
			return s.publishReply(m, c.RepliesSubject, o)
		}
	case c.Replies != "":
		return func(m queue.Message, o workers.Outcome) workers.Outcome { return s.reply(m, c.Replies, o) }
	}
	return nil
}

// whole is a reply that comes in parts and becomes a message. Nil is a reply that does not.
type whole struct {
	contentType string
	data        []byte
	large       bool
}

func (f *flight) collect(contentType string) io.Writer {
	f.whole = &whole{contentType: contentType}
	return f.whole
}

func (w *whole) Write(b []byte) (int, error) {
	if w.large = w.large || len(w.data)+len(b) > workers.MaxPayload; w.large {
		w.data = nil
		return 0, errLargeReply
	}
	w.data = append(w.data, b...)
	return len(b), nil
}

var errLargeReply = fmt.Errorf("a reply that becomes a message has at most %d bytes", workers.MaxPayload)

// outcome returns the outcome of a delivery with the reply as a whole.
func (w *whole) outcome(o workers.Outcome) workers.Outcome {
	if w == nil || o.Failure != "" {
		return o
	}
	o.Free()
	if w.large {
		return workers.Outcome{Failure: workers.HandlerFailed, ErrorType: "TooLarge", Text: errLargeReply.Error()}
	}
	return workers.Outcome{Payload: w.data, ContentType: w.contentType}
}

// loops reports whether a message has led to too many replies in a row, and records that its reply is dropped then.
func (s *state) loops(m queue.Message, field string) bool {
	if m.Hops < maxHops {
		return false
	}
	s.event(corev1.EventTypeWarning, "ReplyDropped", "The reply to message %s was dropped after %d replies in a row: "+
		"%s of the workers may form a loop", m.ID, m.Hops, field)
	return true
}

// replyTo returns the message that the reply to a message becomes.
func replyTo(m queue.Message, o workers.Outcome) queue.Message {
	return queue.Message{
		ID: uuid.NewString(), DedupID: "reply " + m.ID, OrderKey: m.OrderKey, ContentType: o.ContentType, Trace: m.Trace,
		Hops: m.Hops + 1, Payload: slices.Clone(o.Payload),
	}
}

// publishReply publishes the reply to a message on a NATS subject. It returns the outcome of the message, which has
// failed if the reply was not published.
func (s *state) publishReply(m queue.Message, subject string, o workers.Outcome) workers.Outcome {
	if s.loops(m, "delivery.repliesSubject") {
		return o
	}
	if err := s.d.c.Publish(s.key.Namespace, subject, replyTo(m, o)); err != nil {
		o.Free()
		return workers.Outcome{
			Failure: workers.QueueUnavailable,
			Text:    "the reply for NATS subject " + subject + " was not published: " + err.Error(),
		}
	}
	return o
}

// reply queues the reply to a message for another worker. It returns the outcome of the message, which has failed if
// the reply was not queued.
func (s *state) reply(m queue.Message, to string, o workers.Outcome) workers.Outcome {
	if s.loops(m, "delivery.replies") {
		return o
	}
	failed := func(f workers.Failure, why string) workers.Outcome {
		o.Free()
		return workers.Outcome{Failure: f, Text: "the reply for worker " + to + " was not queued: " + why}
	}
	w := s.d.worker(types.NamespacedName{Namespace: s.key.Namespace, Name: to})
	if w == nil {
		return failed(workers.NoReceiver, "the worker does not exist")
	}
	config := workers.QueueOf(w)
	if at := w.Status.QueueServer; at != "" && at != s.d.c.Server && config.Stream != "" {
		return failed(workers.NoReceiver, "server "+at+" keeps its queue")
	}
	k := queue.Key{Namespace: w.Namespace, Worker: w.Name}
	err := s.d.Send(k, config, []Message{{Message: replyTo(m, o)}})()[0]
	var repeated *queue.DuplicateError
	if err != nil && !errors.As(err, &repeated) {
		return failed(workers.QueueFull, err.Error())
	}
	return o
}
