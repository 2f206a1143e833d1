package messages

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// Target is the pod that should receive a message.
type Target struct {
	Namespace, Name string
	UID             types.UID
}

// Deliver hands a message to the pod's program and waits for the outcome until ctx is done. It takes over the payload.
func (m *Manager) Deliver(ctx context.Context, t Target, msg Message) Outcome {
	got := make(chan Outcome, 1)
	var over atomic.Bool // the outcome is known, or ctx is done
	r := m.at(t)
	e := &entry{Message: msg, notify: func(o Outcome) {
		if over.CompareAndSwap(false, true) {
			got <- o
		} else {
			o.release()
		}
	}}
	m.offer(r, e)
	select {
	case o := <-got:
		return o
	case <-ctx.Done():
	}
	if over.CompareAndSwap(false, true) {
		r.queue.abandon(e) // r has the message, or the outcome would be known
		return Outcome{Failure: workers.ReceiverLost, Text: "the server has gone"}
	}
	return <-got
}

// Accept hands over messages from the server in this process, in order. It does not block.
func (m *Manager) Accept(list []*workers.Delivery) {
	for _, d := range list {
		r := m.at(Target{Namespace: d.Namespace, Name: d.Pod, UID: d.UID})
		e := &entry{
			Message: Message{
				ID: d.ID, ContentType: d.ContentType, Trace: d.Trace, DeadLetter: d.DeadLetter, Attempt: d.Attempt,
				Deadline: d.Deadline, Begin: d.Begin, payload: &payload{data: d.Payload},
			},
			notify: func(o Outcome) { d.Done(delivered(o)) },
		}
		if n := int64(len(d.Payload)) + overhead; r != nil {
			if !r.bytes.take(n) {
				e.notify(Outcome{Failure: workers.QueueFull, Text: errNoMemory.Error(), Untouched: true})
				continue
			}
			e.payload.bytes, e.payload.held = r.bytes, n
		}
		m.offer(r, e)
	}
}

func delivered(o Outcome) workers.Outcome {
	d := workers.Outcome{
		Failure: o.Failure, Text: o.Text, ErrorType: o.ErrorType, ContentType: o.ContentType, Untouched: o.Untouched,
	}
	if o.body != nil {
		d.Payload, d.Release = o.body.data, o.body.release
	}
	return d
}

// at returns the receiver of a pod, or nil if the pod has no queue here.
func (m *Manager) at(t Target) *receiver {
	r := m.receiver(t.UID)
	if r == nil || r.pod.Namespace != t.Namespace || r.pod.Name != t.Name {
		return nil
	}
	return r
}

func (*Manager) offer(r *receiver, e *entry) {
	o := Outcome{Failure: workers.NoReceiver, Text: "the pod has no message queue on its node", Untouched: true}
	if r != nil {
		o.Failure, o.Text = r.queue.offer(e)
	}
	if o.Failure != "" {
		e.payload.release()
		e.notify(o)
	}
}
