package subject

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// item is a message that is not in the queue.
type item struct {
	dispatch.Message
	accepted func()
	// refused reports whether to try again after fullPause. It is false for poison, which can never be queued.
	refused func(err error, poison bool) (again bool)
}

// requestWait is how long a request waits for the worker, as for calls over HTTP.
const requestWait = time.Minute

var errLarge = fmt.Errorf("a message has at most %d bytes", workers.MaxPayload)

// deliver queues messages and waits while the queue is full: others stay unread then.
func (s *source) deliver(ctx context.Context, list []item) {
	list = slices.DeleteFunc(list, func(m item) bool {
		large := len(m.Payload) > workers.MaxPayload
		return large && !s.refuse(m, errLarge)
	})
	for len(list) > 0 {
		var again []item
		var msgs []dispatch.Message
		for _, m := range list {
			msgs = append(msgs, m.Message)
		}
		// Messages that have arrived are queued, also at the end.
		send, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		errs := s.c.Send(send, s.worker, msgs)
		cancel()
		var full error
		for i, err := range errs {
			if err == nil {
				list[i].accepted()
			} else if s.refuse(list[i], err) {
				again = append(again, list[i])
			}
			if err != nil && !poison(err) && list[i].Done == nil { // requests get their answer at once
				full = err
			}
		}
		if s.full || full != nil {
			s.full = full != nil
			s.report(full)
		}
		if full == nil {
			return
		}
		select {
		case <-time.After(fullPause):
		case <-ctx.Done():
			return
		}
		list = again
	}
}

func poison(err error) bool { return errors.Is(err, errLarge) || errors.Is(err, queue.ErrTooLarge) }

func (s *source) refuse(m item, err error) (again bool) {
	if poison(err) {
		s.event(corev1.EventTypeWarning, "MessageRefused", "A message of NATS subject %s was dropped: %s", s.key.Subject, err)
	}
	return m.refused(err, poison(err))
}

func newItem(h nats.Header, payload []byte) item {
	hops, _ := strconv.ParseUint(h.Get(headerHops), 10, 8)
	m := queue.Message{
		ID: uuid.NewString(), Payload: payload, DedupID: h.Get(nats.MsgIdHdr), OrderKey: h.Get(workers.HeaderOrderKey),
		Trace: cmp.Or(h.Get(headerTrace), h.Get("Traceparent")), ContentType: h.Get("Content-Type"), Hops: int(hops),
	}
	if m.ContentType == "" || len(m.ContentType) > maxContentType {
		m.ContentType = "application/octet-stream"
	}
	return item{Message: dispatch.Message{Message: m}, accepted: func() {}}
}

// stored returns a message of a stream. If its acknowledgement is lost, NATS delivers it again, and the queue knows it
// by its place in the stream.
func (s *source) stored(prefix string, m jetstream.Msg) item {
	out := newItem(m.Headers(), m.Data())
	if meta, err := m.Metadata(); err == nil { // Fetch has read it
		out.DedupID = prefix + strconv.FormatUint(meta.Sequence.Stream, 10)
	}
	out.accepted = func() { _ = m.Ack() }
	out.refused = func(err error, poison bool) bool {
		if poison {
			_ = m.TermWithReason(err.Error())
		} else {
			_ = m.NakWithDelay(fullPause)
		}
		return false
	}
	return out
}

// core returns a message that no stream has. One with a reply subject is a request. That subject is its sender's
// choice, so it must not be one by which NATS is controlled, or one of a queue's stream.
func (s *source) core(conn *nats.Conn, m *nats.Msg) item {
	out := newItem(m.Header, m.Data)
	out.refused = func(_ error, poison bool) bool { return !poison }
	if m.Reply == "" || strings.HasPrefix(m.Reply, "$") || strings.HasPrefix(m.Reply, "coracle.") {
		return out
	}
	fail := func(code int, text string) {
		_ = conn.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{
			headerCode: {strconv.Itoa(code)}, headerError: {text},
		}})
	}
	out.DedupID, out.Deadline = "", time.Now().Add(requestWait) // replies are not kept for repetitions
	out.Done = func(o dispatch.Outcome) {
		s.running.Go(func() { // Done must not block
			defer o.Free()
			if o.Failure != "" {
				fail(o.Failure.Code(), s.c.Texts[o.Failure])
				return
			}
			err := conn.PublishMsg(&nats.Msg{Subject: m.Reply, Data: o.Payload, Header: nats.Header{
				"Content-Type": {o.ContentType},
			}})
			if errors.Is(err, nats.ErrMaxPayload) {
				fail(http.StatusInternalServerError, "the reply is too large for the NATS servers")
			}
		})
	}
	out.refused = func(err error, poison bool) bool {
		f := workers.QueueUnavailable
		if errors.Is(err, queue.ErrFull) || errors.Is(err, queue.ErrNoRoom) {
			f = workers.QueueFull
		}
		if poison {
			fail(http.StatusRequestEntityTooLarge, err.Error())
		} else {
			fail(f.Code(), s.c.Texts[f])
		}
		return false
	}
	return out
}
