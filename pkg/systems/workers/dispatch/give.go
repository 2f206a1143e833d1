package dispatch

import (
	"context"
	"io"
	"time"

	"go.opentelemetry.io/otel/trace"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// give gives each pod with a free slot at most one message or batch. It returns false if no pod got one.
func (s *state) give(local map[Node][]*workers.Delivery, ends *[]func()) (given bool) {
	now := time.Now()
	for range s.pods {
		depth := s.d.c.Queues.Depth(s.key)
		if depth.Waiting == depth.Delayed {
			s.window = time.Time{}
			return given
		}
		p := s.pods[s.next%len(s.pods)]
		s.next = (s.next + 1) % len(s.pods)
		if s.gathers(p.config.Batch, &depth, now) || p.flight >= p.slots || p.rest.After(now) {
			continue
		}
		if p.config.Batch != nil {
			given = s.giveBatch(p, local, ends) || given
		} else if m, ok := s.claim(p, ends); ok {
			given = true
			s.deliver(p, m, local)
		}
	}
	return given
}

// claim claims a message for a pod.
func (s *state) claim(p *pod, ends *[]func()) (m queue.Message, ok bool) {
	for {
		if m, ok = s.d.c.Queues.Claim(s.key, p.name); !ok {
			return m, false
		}
		s.changed()
		if w := s.waits[m.ID]; w != nil && w.gone {
			delete(s.waits, m.ID)
			s.d.c.Queues.Acknowledge(s.key, m.ID)
			continue
		}
		if m.Durable && s.config != nil && m.Attempts > s.config.MaxAttempts {
			*ends = append(*ends, s.end(m, "", workers.Outcome{
				Failure: workers.ReceiverLost, Text: "the server ended while a program had the message for the last time",
			}))
			continue
		}
		return m, true
	}
}

// fly records that a pod gets a message, whose attempt has a span or nil.
func (s *state) fly(p *pod, m queue.Message, span trace.Span) *flight {
	f := &flight{m: m, pod: p, span: span}
	f.m.Payload = nil
	s.flights[m.ID] = f
	s.counts.delivered++
	if m.Attempts > 1 {
		s.counts.redelivered++
	}
	return f
}

func (s *state) deliver(p *pod, m queue.Message, local map[Node][]*workers.Delivery) {
	span := s.d.c.Spans.Start(s.key, p.name, p.node, &m)
	f := s.fly(p, m, span)
	delivery := &workers.Delivery{
		ID: m.ID, Payload: m.Payload, Namespace: s.key.Namespace, Pod: p.name, UID: p.uid, ContentType: m.ContentType,
		Trace: m.Trace, DeadLetter: m.DeadLetter, Attempt: m.Attempts, Done: func(o workers.Outcome) { s.finish(f, o) },
	}
	if w := s.waits[m.ID]; w != nil {
		delivery.Deadline = w.deadline
		if w.parts {
			delivery.Begin = func(contentType string) io.Writer { return s.begin(f, contentType) }
		}
	} else if s.config != nil && s.config.Replies+s.config.RepliesSubject != "" {
		delivery.Begin = f.collect
	}
	f.cancel = s.hand(p, delivery, local)
}

// hand hands a delivery to a pod's node. The returned function ends it; it is nil for the node in this process.
func (s *state) hand(p *pod, m *workers.Delivery, local map[Node][]*workers.Delivery) context.CancelFunc {
	p.flight++
	if node := s.d.c.Local(p.node); node != nil {
		local[node] = append(local[node], m)
		return nil
	}
	ctx, cancel := context.WithTimeout(s.d.ctx, p.config.Timeout()+time.Minute)
	if !s.d.background(func() { defer cancel(); m.Done(s.d.post(ctx, p.node, m)) }) {
		cancel()
	}
	return cancel
}
