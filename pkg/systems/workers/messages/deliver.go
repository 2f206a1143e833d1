package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// Target is the pod that should receive a message.
type Target struct {
	Namespace, Name string
	UID             types.UID
}

type arrival struct {
	*entry
	to *receiver
	// out has a Failure if the message was not accepted.
	out Outcome
}

// Deliver queues a message and, if wait is true, waits for its outcome until ctx is done. It takes over the payload.
func (m *Manager) Deliver(ctx context.Context, t Target, msg Message, wait bool) Outcome {
	return m.DeliverAll(ctx, t, []Message{msg}, wait)[0]
}

// DeliverAll delivers messages as Deliver does. AtLeastOnce messages share one fsync.
func (m *Manager) DeliverAll(ctx context.Context, t Target, list []Message, wait bool) []Outcome {
	out := make([]Outcome, len(list))
	r := m.at(t)
	arrivals := make([]arrival, len(list))
	replies := make([]chan Outcome, len(list))
	for i := range list {
		arrivals[i] = arrival{entry: &entry{Message: list[i]}, to: r}
		if wait {
			replies[i] = make(chan Outcome, 1)
			arrivals[i].reply = &waiter{notify: func(o Outcome) { replies[i] <- o }}
		}
	}
	m.accept(arrivals)
	for i := range arrivals {
		a := &arrivals[i]
		if out[i] = a.out; !wait || a.out.Failure != "" {
			continue
		}
		select {
		case out[i] = <-replies[i]:
			continue
		case <-ctx.Done():
		}
		r.queue.abandon(a.entry)
		a.reply.answer(late())
		out[i] = <-replies[i]
	}
	return out
}

func late() Outcome {
	return Outcome{Failure: workers.HandlerTimeout, Text: "the sender's deadline has passed"}
}

// at returns the receiver of a pod, or nil if the pod has no queue here.
func (m *Manager) at(t Target) *receiver {
	r := m.receiver(t.UID)
	if r == nil || r.pod.Namespace != t.Namespace || r.pod.Name != t.Name {
		return nil
	}
	return r
}

// accept queues messages in order. It first writes AtLeastOnce messages to disk, with one fsync. A message without a
// receiver fails with NoReceiver. It releases the payloads of messages that are not accepted.
func (m *Manager) accept(list []arrival) {
	m.persist(list)
	for i := range list {
		a := &list[i]
		switch {
		case a.out.Failure != "":
		case a.to == nil:
			a.out = Outcome{Failure: workers.NoReceiver, Text: "the pod has no message queue on its node", Untouched: true}
		default:
			a.out = a.to.offer(a.entry)
		}
		if a.out.Failure != "" {
			a.payload.release()
		}
	}
}

// offer queues a message that is new on this node, or returns why the queue refused it.
func (r *receiver) offer(e *entry) Outcome {
	f := r.queue.offer(e, false)
	if f == "" {
		return Outcome{}
	}
	if e.seq != 0 {
		r.m.log.done(e.seq)
	}
	text := "the pod terminates"
	if f == workers.QueueFull {
		text = fmt.Sprintf("%d messages wait", r.queue.config.Limit)
	}
	return Outcome{Failure: f, Text: text, Untouched: true}
}

// persist writes the AtLeastOnce messages without a waiting sender to the log. A message that it could not write gets
// the outcome QueueFull.
func (m *Manager) persist(list []arrival) {
	var mark uint64
	var failed error
	for i := range list {
		a := &list[i]
		if a.to == nil || a.out.Failure != "" || a.reply != nil || a.to.queue.config.Promise != workers.AtLeastOnce {
			continue
		}
		pod, config := a.to.pod, a.to.queue.config
		a.expires = time.Now().Add(config.MaxWait())
		seq, at, err := m.log.write(&stored{
			Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID), Queue: config, ID: a.ID,
			ContentType: a.ContentType, Trace: a.Trace, DeadLetter: a.DeadLetter, Receipt: a.Receipt, Attempts: a.Attempts,
			Expires: a.expires, payload: a.payload.data,
		})
		if err != nil {
			a.out, failed = Outcome{Failure: workers.QueueFull, Text: err.Error(), Untouched: true}, err
			continue
		}
		a.seq, mark = seq, at
	}
	if mark != 0 {
		if err := m.log.sync(mark); err != nil {
			failed = err
			for i := range list {
				if list[i].seq != 0 {
					list[i].out = Outcome{Failure: workers.QueueFull, Text: err.Error(), Untouched: true}
				}
			}
		}
	}
	if failed != nil && !errors.Is(failed, errLogFull) {
		m.c.Logger.Warn("could not write messages", "error", failed)
	}
}
