package subject

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestMessagesOfASubject checks what of a message reaches the queue, and that two servers get each message once.
func TestMessagesOfASubject(t *testing.T) {
	b := newBroker(t)
	natsContext := b.context(map[string]string{})
	w := worker(workers.NATSTrigger{Subject: "ns.orders.>"})
	h, other := newHome(t, natsContext), newHome(t, natsContext)
	h.follow(w, "")
	c, _ := b.client()
	m := &nats.Msg{Subject: "ns.orders.new", Data: []byte("one"), Header: nats.Header{
		"Content-Type": {"text/plain"}, "Nats-Msg-Id": {"id"}, "traceparent": {trace}, headerHops: {"3"},
		workers.HeaderOrderKey: {"key"},
	}}
	require.NoError(t, c.PublishMsg(m))
	require.NoError(t, c.Publish("ns.elsewhere", []byte("not this")))
	got := h.next().Message
	require.NotEmpty(t, got.ID)
	got.ID = ""
	require.Equal(t, queue.Message{
		Payload: []byte("one"), ContentType: "text/plain", DedupID: "id", Trace: trace, Hops: 3, OrderKey: "key",
	}, got)

	other.follow(w, "")
	for i := range 50 {
		require.NoError(t, c.Publish("ns.orders.new", []byte(fmt.Sprint(i))))
	}
	seen := map[string]bool{}
	for range 50 {
		select {
		case m := <-h.got:
			seen[string(m.Payload)] = true
		case m := <-other.got:
			seen[string(m.Payload)] = true
		case <-time.After(time.Minute):
			t.Fatal("messages are missing")
		}
	}
	require.Len(t, seen, 50)
	h.Stop(nsW, false)
	h.Close()
	require.NoError(t, c.Publish("ns.orders.new", []byte("last")))
	require.Equal(t, "last", string(other.next().Payload))
	require.NoError(t, c.Publish("ns.orders.large", make([]byte, workers.MaxPayload+1)))
	require.Contains(t, other.event("MessageRefused"), "at most 1048576 bytes")
	require.Empty(t, h.got)
}

// TestFullQueueHoldsASubjectUp checks that messages wait, unread, until the queue takes them, and that the worker's
// status says why.
func TestFullQueueHoldsASubjectUp(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	h := newHome(t, b.context(map[string]string{}))
	w := worker(workers.NATSTrigger{Subject: "ns.orders"})
	h.follow(w, "")
	h.set(queue.ErrFull, func() {})
	c, _ := b.client()
	for i := range 3 {
		require.NoError(t, c.Publish("ns.orders", []byte(fmt.Sprint(i))))
	}
	h.follow(w, "the queue is full")
	require.Contains(t, h.event("TriggerFailed"), "the queue is full")
	require.Empty(t, h.got)
	h.set(nil, func() {})
	for i := range 3 {
		require.Equal(t, fmt.Sprint(i), string(h.next().Payload))
	}
	h.follow(w, "")
}

// TestRequests checks the replies to requests, and to those that fail.
func TestRequests(t *testing.T) {
	b := newBroker(t)
	h := newHome(t, b.context(map[string]string{}))
	h.follow(worker(workers.NATSTrigger{Subject: "ns.calc"}), "")
	c, _ := b.client()
	request := func(payload []byte, answer func(m dispatch.Message)) *nats.Msg {
		done := make(chan *nats.Msg, 1)
		go func() {
			m, err := c.Request("ns.calc", payload, time.Minute)
			if err != nil {
				t.Error(err)
			}
			done <- m
		}()
		if answer != nil {
			answer(h.next())
		}
		return <-done
	}
	failure := func(m *nats.Msg) string { return m.Header.Get(headerCode) + " " + m.Header.Get(headerError) }

	freed := make(chan struct{})
	m := request([]byte("1+1"), func(m dispatch.Message) {
		require.WithinDuration(t, time.Now().Add(requestWait), m.Deadline, time.Minute/2)
		m.Done(dispatch.Outcome{Outcome: workers.Outcome{
			Payload: []byte("2"), ContentType: "text/plain", Release: func() { close(freed) },
		}})
	})
	<-freed
	require.Equal(t, "2", string(m.Data))
	require.Equal(t, "text/plain", m.Header.Get("Content-Type"))
	m = request([]byte("1/0"), func(m dispatch.Message) {
		m.Done(dispatch.Outcome{Outcome: workers.Outcome{Failure: workers.HandlerFailed, Text: "a secret"}})
	})
	require.Empty(t, m.Data)
	require.Equal(t, "500 it failed", failure(m))
	m = request([]byte("much"), func(m dispatch.Message) {
		m.Done(dispatch.Outcome{Outcome: workers.Outcome{Payload: make([]byte, 8<<20+1)}})
	})
	require.Equal(t, "500 the reply is too large for the NATS servers", failure(m))
	require.Equal(t, "413 a message has at most 1048576 bytes", failure(request(make([]byte, 1<<20+1), nil)))
	h.set(queue.ErrFull, func() {})
	require.Equal(t, "429 it is full", failure(request(nil, nil)))
	h.set(nil, func() {})

	for _, to := range []string{"$JS.API.STREAM.PURGE.x", "coracle.uid.m.1"} {
		require.NoError(t, c.PublishRequest("ns.calc", to, []byte("x")))
		require.Nil(t, h.next().Done, "a reply there could do harm")
	}
}

// TestServersOfASubjectReturn checks that the status says that NATS is down, and that messages come again afterwards.
func TestServersOfASubjectReturn(t *testing.T) {
	b := newBroker(t)
	natsContext := b.context(map[string]string{})
	h := newHome(t, natsContext)
	w := worker(workers.NATSTrigger{Subject: "ns.orders"})
	h.follow(w, "")
	b.stop()
	h.follow(w, errLost.Error())
	late := newHome(t, natsContext) // starts while NATS is down
	late.follow(w, "no connection to the NATS servers")
	b.start()
	h.follow(w, "")
	late.follow(w, "")
	late.Stop(nsW, true)
	late.Close()
	c, _ := b.client()
	require.NoError(t, c.Publish("ns.orders", []byte("again")))
	require.Equal(t, "again", string(h.next().Payload))
}

// TestSubjectsOfOthers checks which subjects no server reads or writes, whatever the worker says.
func TestSubjectsOfOthers(t *testing.T) {
	b := newBroker(t)
	h := newHome(t, b.context(map[string]string{"inbox_prefix": "ns.inbox"}))
	for subject, why := range map[string]string{
		"other.orders": "ns.>, shared.*", "*.orders": "wildcard", "$JS.API.>": "internal", "coracle.uid.m.1": "internal",
		"ns.*.x": "NATS uses ns.inbox.> itself", "ns.inbox.a": "NATS uses ns.inbox.> itself",
	} {
		h.follow(worker(workers.NATSTrigger{Subject: subject}), why)
		require.ErrorContains(t, h.Publish("ns", subject, queue.Message{}), why, subject)
	}
	h.follow(worker(workers.NATSTrigger{Subject: "shared.x"}), "")
	none := newHome(t, "")
	none.follow(worker(workers.NATSTrigger{Subject: "ns.x"}), "no option nats-context")
}

// TestSourcesAreBounded checks that a namespace cannot use up a server's memory by subjects.
func TestSourcesAreBounded(t *testing.T) {
	b := newBroker(t)
	h := newHome(t, b.context(map[string]string{}))
	w := worker()
	for i := range maxSourcesEach + 1 {
		w.Spec.Triggers = append(w.Spec.Triggers, workers.WorkerTrigger{
			NATS: &workers.NATSTrigger{Subject: fmt.Sprint("ns.", i)},
		})
	}
	require.Contains(t, h.Set(w)[maxSourcesEach], "at most 256 NATS subjects, 64 of a namespace")
	h.follow(w, "")
}
