package subject

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

var orders = workers.NATSTrigger{Subject: "ns.orders.*", Stream: "ORDERS"}

func makeStream(t *testing.T, js jetstream.JetStream) jetstream.Stream {
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"ns.>", "other.>"}})
	require.NoError(t, err)
	return s
}

func consumers(t *testing.T, s jetstream.Stream) (list []*jetstream.ConsumerInfo) {
	all := s.ListConsumers(t.Context())
	for info := range all.Info() {
		list = append(list, info)
	}
	require.NoError(t, all.Err())
	return list
}

// acknowledged waits until all messages for the only consumer are.
func acknowledged(t *testing.T, s jetstream.Stream) {
	require.Eventually(t, func() bool {
		c := consumers(t, s)[0]
		return c.NumPending == 0 && c.NumAckPending == 0
	}, time.Minute, 10*time.Millisecond)
}

// TestMessagesOfAStream checks that a stream is read from its beginning, by its filter, that each message is
// acknowledged once it is queued, that poison does not come back, and what becomes of the consumer.
func TestMessagesOfAStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	c, js := b.client()
	h := newHome(t, b.context(map[string]string{}))
	w := worker(orders)
	h.follow(w, "stream not found")
	s := makeStream(t, js)
	for i := range 100 {
		_, err := js.Publish(t.Context(), "ns.orders.new", []byte(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	_, err := js.Publish(t.Context(), "other.orders", []byte("of another namespace"))
	require.NoError(t, err)
	require.NoError(t, c.Publish("ns.orders.large", make([]byte, workers.MaxPayload+1)))
	_, err = js.Publish(t.Context(), "ns.orders.new", []byte("last"))
	require.NoError(t, err)
	ids := map[string]bool{}
	for i := range 100 {
		m := h.next()
		require.Equal(t, fmt.Sprint(i), string(m.Payload))
		require.Nil(t, m.Done)
		ids[m.DedupID] = true
	}
	require.Len(t, ids, 100)
	require.Equal(t, "last", string(h.next().Payload))
	require.Contains(t, h.event("MessageRefused"), "at most 1048576 bytes")
	acknowledged(t, s)
	info := consumers(t, s)[0].Config
	require.Equal(t, []any{"ns.orders.*", maxBatch, abandoned, jetstream.AckExplicitPolicy},
		[]any{info.FilterSubject, info.MaxAckPending, info.InactiveThreshold, info.AckPolicy})

	next := newHome(t, h.nats.Context)
	h.Stop(nsW, false)
	h.Close()
	require.Len(t, consumers(t, s), 1, "the next home of the queue reads on")
	next.follow(w, "")
	_, err = js.Publish(t.Context(), "ns.orders.new", []byte("next"))
	require.NoError(t, err)
	require.Equal(t, "next", string(next.next().Payload))
	next.Set(worker(workers.NATSTrigger{Subject: "ns.orders.eu", Stream: "ORDERS"}))
	require.Eventually(t, func() bool {
		list := consumers(t, s)
		return len(list) == 1 && list[0].Config.FilterSubject == "ns.orders.eu"
	}, time.Minute, 10*time.Millisecond)
	next.Stop(nsW, true)
	require.Eventually(t, func() bool { return len(consumers(t, s)) == 0 }, time.Minute, 10*time.Millisecond)
}

// TestConsumerGoesLater checks that the consumer of a deleted worker is deleted when NATS is back, and that a trigger
// that is back meanwhile gets a new one.
func TestConsumerGoesLater(t *testing.T) {
	b := newBroker(t)
	_, js := b.client()
	s := makeStream(t, js)
	h := newHome(t, b.context(map[string]string{}))
	h.follow(worker(orders), "")
	b.stop()
	h.follow(worker(orders), errLost.Error())
	h.Stop(nsW, true)
	b.start()
	require.Eventually(t, func() bool {
		all := s.ListConsumers(t.Context())
		n := 0
		for range all.Info() {
			n++
		}
		return n == 0 && all.Err() == nil
	}, time.Minute, 10*time.Millisecond)
	h.follow(worker(orders), "")
	require.Len(t, consumers(t, s), 1)
}

// TestKillBetweenQueueAndAcknowledgement checks that a message whose acknowledgement NATS does not get comes again with
// the same ID, which the queue refuses.
func TestKillBetweenQueueAndAcknowledgement(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	_, js := b.client()
	s := makeStream(t, js)
	h := newHome(t, b.context(map[string]string{}))
	h.follow(worker(orders), "")
	h.set(nil, h.nats.Close)
	_, err := js.Publish(t.Context(), "ns.orders.new", []byte("one"))
	require.NoError(t, err)
	first := h.next()
	h.set(nil, func() {})
	second := h.next()
	require.Equal(t, first.DedupID, second.DedupID)
	require.NotEqual(t, first.ID, second.ID)
	acknowledged(t, s)
}

// TestFullQueueLeavesMessagesInTheStream checks that NATS keeps what the queue does not take.
func TestFullQueueLeavesMessagesInTheStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	_, js := b.client()
	s := makeStream(t, js)
	h := newHome(t, b.context(map[string]string{}))
	w := worker(orders)
	h.follow(w, "")
	h.set(queue.ErrFull, func() {})
	for range 20 {
		_, err := js.Publish(t.Context(), "ns.orders.new", []byte("x"))
		require.NoError(t, err)
	}
	h.follow(w, "the queue is full")
	info := consumers(t, s)[0]
	require.EqualValues(t, 20, int(info.NumPending)+info.NumAckPending)
	h.set(nil, func() {})
	for range 20 {
		h.next()
	}
	h.follow(w, "")
	acknowledged(t, s)
}

// TestPublish checks the replies to subjects with and without a stream.
func TestPublish(t *testing.T) {
	b := newBroker(t)
	c, js := b.client()
	h := newHome(t, b.context(map[string]string{}))
	sub, err := c.SubscribeSync("ns.done")
	require.NoError(t, err)
	require.NoError(t, c.Flush())
	reply := queue.Message{Payload: []byte("done"), DedupID: "reply 1", ContentType: "text/plain", Trace: trace, Hops: 2}
	require.NoError(t, h.Publish("ns", "ns.done", reply))
	m, err := sub.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, "done", string(m.Data))
	require.Equal(t, []string{"reply 1", "text/plain", trace, "2"}, []string{
		m.Header.Get("Nats-Msg-Id"), m.Header.Get("Content-Type"), m.Header.Get("traceparent"), m.Header.Get(headerHops),
	})

	s := makeStream(t, js)
	require.NoError(t, h.Publish("ns", "ns.done", reply))
	require.NoError(t, h.Publish("ns", "ns.done", reply), "the message was delivered again")
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, info.State.Msgs)
	_, err = js.UpdateStream(t.Context(), jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{"ns.>", "other.>"}, MaxMsgs: 1, Discard: jetstream.DiscardNew,
	})
	require.NoError(t, err)
	reply.DedupID = "reply 2"
	require.ErrorContains(t, h.Publish("ns", "ns.done", reply), "maximum messages exceeded")
	require.ErrorContains(t, h.Publish("ns", "other.done", reply), "nats-subjects")
	b.stop()
	require.Error(t, h.Publish("ns", "ns.done", reply))
	b.start()
	require.Eventually(t, func() bool { return h.Publish("ns", "shared.done", reply) == nil }, time.Minute,
		10*time.Millisecond)
}
