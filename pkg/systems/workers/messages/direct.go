package messages

import (
	"math"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// Accept queues messages from the API server in this process, in order, and reports each outcome through Done. It
// blocks only on the disk.
func (m *Manager) Accept(list []*workers.Delivery) {
	arrivals := make([]arrival, len(list))
	for i, d := range list {
		a := &arrivals[i]
		msg := Message{
			ID:          d.ID,
			ContentType: d.ContentType,
			Trace:       d.Trace,
			Receipt:     d.Receipt,
			Deadline:    d.Deadline,
			payload:     &payload{data: d.Payload},
		}
		a.entry, a.to = &entry{Message: msg}, m.at(Target{Namespace: d.Namespace, Name: d.Pod, UID: d.UID})
		if !d.Deadline.IsZero() {
			a.entry.reply = m.waiter(a, d)
		}
		if a.to == nil {
			continue
		}
		n := int64(len(d.Payload)) + overhead
		if !a.to.bytes.take(n) {
			a.out = Outcome{Failure: workers.QueueFull, Text: errNoMemory.Error(), Untouched: true}
			continue
		}
		a.payload.bytes, a.payload.held = a.to.bytes, n
	}
	m.accept(arrivals)
	for i := range arrivals {
		a := &arrivals[i]
		switch {
		case a.reply == nil:
			list[i].Done(delivered(a.out))
		case a.out.Failure != "":
			a.reply.answer(a.out)
		default:
			a.reply.timer.Reset(time.Until(a.Deadline))
		}
	}
}

// waiter returns the waiter for the reply to d. Accept starts its deadline once the message is queued: a message that
// ended before would still be queued.
func (m *Manager) waiter(a *arrival, d *workers.Delivery) *waiter {
	e, r := a.entry, a.to
	w := &waiter{notify: func(o Outcome) { d.Done(delivered(o)) }}
	end := func() {
		if r != nil {
			r.queue.abandon(e)
		}
		w.once(late())
	}
	d.Cancel = end
	w.timer = time.AfterFunc(math.MaxInt64, end)
	return w
}

func delivered(o Outcome) workers.Delivered {
	d := workers.Delivered{
		BatchOutcome: workers.BatchOutcome{
			Failure:     o.Failure,
			Text:        o.Text,
			ErrorType:   o.ErrorType,
			ContentType: o.ContentType,
			Attempts:    o.Attempts,
			Untouched:   o.Untouched,
		},
	}
	if o.body != nil {
		d.Payload, d.Release = o.body.data, o.body.release
	}
	return d
}
