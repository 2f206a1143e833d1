package dispatch

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// end ends a claimed message. The caller holds s.mu, and calls the returned function without it.
func (s *state) end(m queue.Message, pod string, o workers.Outcome) func() {
	if w := s.waits[m.ID]; w != nil {
		s.d.c.Queues.Acknowledge(s.key, m.ID)
		w.timer.Stop()
		delete(s.waits, m.ID)
		if w.gone {
			return o.Free
		}
		if o.Failure == "" {
			s.counts.succeeded++
		} else {
			s.counts.failed++
		}
		return func() { w.end(Outcome{Outcome: o, Pod: pod, Attempts: m.Attempts}) }
	}
	if o.Failure == "" {
		s.counts.succeeded++
		s.d.c.Queues.Acknowledge(s.key, m.ID)
		return o.Free
	}
	s.counts.failed++
	why := describe(o)
	if !m.Durable || s.deleted {
		s.d.c.Queues.Acknowledge(s.key, m.ID)
		return func() { s.lost(m, why) }
	}
	removed := s.d.c.Queues.Return(s.key, m.ID, queue.Result{Error: why, Dead: true})
	forwards := s.config != nil && s.config.DeadLetter != ""
	return func() {
		for _, old := range removed {
			s.lost(old, old.Error)
		}
		if forwards {
			s.forward()
			return
		}
		s.event(corev1.EventTypeWarning, "MessageDead", "Message %s is dead after %s: %s", m.ID,
			count.Of(m.Attempts, "attempt"), why)
	}
}

// lost reports a message that was dropped.
func (s *state) lost(m queue.Message, why string) {
	s.mu.Lock()
	s.counts.dropped++
	s.mu.Unlock()
	s.event(corev1.EventTypeWarning, "MessageLost", "Message %s was dropped after %s: %s", m.ID,
		count.Of(m.Attempts, "attempt"), why)
	s.d.c.Logger.Info("message dropped", "queue", s.key.String(), "id", m.ID, "attempts", m.Attempts, "reason", why)
}

// event records an event about the queue's worker, or about its pod.
func (s *state) event(kind, reason, format string, args ...any) {
	ref := corev1.ObjectReference{Namespace: s.key.Namespace, Name: s.key.Pod, Kind: "Pod", APIVersion: "v1"}
	if s.key.Worker != "" {
		ref.Name, ref.Kind, ref.APIVersion = s.key.Worker, "Worker", workers.GroupVersion.String()
		s.mu.Lock()
		if s.worker != nil {
			ref.UID = s.worker.UID
		}
		s.mu.Unlock()
	}
	s.d.c.Events.About(ref, kind, reason, format, args...)
}

// forwardRetry is the pause after the dead-letter worker's queue took no message.
const forwardRetry = 30 * time.Second

// forward has dead messages moved to the dead-letter worker's queue. It does nothing while that worker does not exist.
func (s *state) forward() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.moving {
		s.moving = s.d.background(s.move)
	}
}

func (s *state) move() {
	defer func() {
		s.mu.Lock()
		s.moving = false
		s.mu.Unlock()
	}()
	after := uint64(0)
	for s.d.ctx.Err() == nil {
		s.mu.Lock()
		c := s.config
		s.mu.Unlock()
		list := s.d.c.Queues.List(s.key, queue.Dead, after, 100)
		if len(list) == 0 || c == nil || c.DeadLetter == "" {
			return
		}
		to := s.d.worker(types.NamespacedName{Namespace: s.key.Namespace, Name: c.DeadLetter})
		if to == nil {
			return // its addition has the messages moved
		}
		if at := to.Status.QueueServer; at != "" && at != s.d.c.Server && workers.QueueOf(to).Stream != "" {
			time.AfterFunc(forwardRetry, s.forward) // only that server may write the stream
			return
		}
		for _, m := range list {
			after = m.Seq
			if err := s.bury(m.ID, to); err != nil {
				time.AfterFunc(forwardRetry, s.forward)
				return
			}
		}
	}
}

// bury moves a dead message to the queue of the dead-letter worker. If the process is killed in between, the message is
// in both queues, and the next attempt to move it finds it there if it has not been handled.
func (s *state) bury(id string, to *workers.Worker) error {
	m, ok := s.d.c.Queues.Find(s.key, id)
	if !ok || m.State != queue.Dead {
		return nil
	}
	why := fmt.Sprintf("%s after %s", m.Error, count.Of(m.Attempts, "attempt"))
	letter := Message{Message: queue.Message{
		ID: m.ID, OrderKey: m.OrderKey, ContentType: m.ContentType, Trace: m.Trace, DeadLetter: m.Error, Hops: m.Hops,
		Payload: m.Payload,
	}}
	k := queue.Key{Namespace: to.Namespace, Worker: to.Name}
	errs := s.d.Send(k, workers.QueueOf(to), []Message{letter})()
	if errs[0] != nil && errs[0] != queue.ErrDuplicate { //nolint:errorlint // Append returns it as it is
		return errs[0]
	}
	s.d.c.Queues.Withdraw(s.key, id)
	s.mu.Lock()
	s.counts.deadLettered++
	s.changed()
	s.mu.Unlock()
	s.event(corev1.EventTypeWarning, "MessageDeadLettered", "Message %s was sent to worker %s: %s", id, to.Name, why)
	return nil
}
