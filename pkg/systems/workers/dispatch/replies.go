package dispatch

import (
	"errors"
	"slices"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// maxHops bounds the replies that lead from one message to the next, so that a loop of workers ends.
const maxHops = 16

// repliesTo returns the worker that gets the reply to a message; "" means none.
func (s *state) repliesTo(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config == nil || s.deleted || s.waits[id] != nil {
		return ""
	}
	return s.config.Replies
}

// reply queues the reply to a message for another worker. It returns the outcome of the message, which has failed if
// the reply was not queued.
func (s *state) reply(m queue.Message, to string, o workers.Outcome) workers.Outcome {
	if m.Hops >= maxHops {
		s.event(corev1.EventTypeWarning, "ReplyDropped", "The reply to message %s was dropped after %d replies in a row: "+
			"delivery.replies of the workers may form a loop", m.ID, m.Hops)
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
	err := s.d.Send(k, config, []Message{{Message: queue.Message{
		ID: uuid.NewString(), DedupID: "reply " + m.ID, OrderKey: m.OrderKey, ContentType: o.ContentType, Trace: m.Trace,
		Hops: m.Hops + 1, Payload: slices.Clone(o.Payload),
	}}})()[0]
	var repeated *queue.DuplicateError
	if err != nil && !errors.As(err, &repeated) {
		return failed(workers.QueueFull, err.Error())
	}
	return o
}
