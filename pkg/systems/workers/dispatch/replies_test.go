package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// replying declares the worker w, whose replies another worker gets.
func (c *cluster) replying(promise workers.Promise, to string) *workers.Worker {
	return c.worker("w", func(s *workers.WorkerSpec) {
		s.Delivery = workers.WorkerDelivery{Promise: promise, Replies: to}
		if promise == workers.AtLeastOnce {
			s.Delivery.MaxAttempts = 3
		}
	})
}

var listener = queue.Key{Namespace: "ns", Worker: "listener"}

func answer(text string) workers.Outcome {
	return workers.Outcome{Payload: []byte(text), ContentType: "text/plain"}
}

// TestReplies checks which replies become messages of another worker, once each.
func TestReplies(t *testing.T) {
	run(t, func(c *cluster) {
		w := c.replying(workers.AtLeastOnce, "listener")
		c.worker("listener", atLeastOnce)
		c.ready("a")
		send := func(m queue.Message) {
			require.NoError(t, c.Send(key, workers.QueueOf(w), []Message{{Message: m}})()[0])
		}
		send(queue.Message{ID: "1", OrderKey: "k", Trace: "t"})
		freed := false
		o := answer("one")
		o.Release = func() { freed = true }
		c.takes("1@a#1")[0].Done(o)
		c.takes()
		require.True(t, freed)
		require.Zero(t, c.queues.Depth(key))
		m, ok := c.queues.Claim(listener, "l")
		require.True(t, ok)
		require.Equal(t, []any{"one", "text/plain", "k", "t", 1, true},
			[]any{string(m.Payload), m.ContentType, m.OrderKey, m.Trace, m.Hops, m.Durable})
		c.queues.Acknowledge(listener, m.ID)

		require.Equal(t, answer("same"), c.state(key).reply(queue.Message{ID: "1"}, "listener", answer("same")))
		require.Zero(t, c.queues.Depth(listener), "a message that is delivered again has one reply")
		c.send("2")
		c.takes("2@a#1")[0].Done(handled)
		got := c.call("3", time.Minute)
		c.takes("3@a#1")[0].Done(answer("for the caller"))
		require.Equal(t, "for the caller", string((<-got).Payload))
		c.takes()
		require.Zero(t, c.queues.Depth(listener), "neither an empty reply nor one that a caller gets")

		m = queue.Message{ID: "4", Hops: maxHops - 1, Payload: []byte("x")}
		send(m)
		c.takes("4@a#1")[0].Done(answer("last"))
		m.ID, m.Hops = "5", maxHops
		send(m)
		c.takes("5@a#1")[0].Done(answer("too much"))
		c.takes()
		require.Zero(t, c.queues.Depth(key))
		require.Equal(t, 1, c.queues.Depth(listener).Waiting, "a loop ends")
	})
}

// TestRepliesWithoutAPlace checks that a message has failed if its reply cannot be queued.
func TestRepliesWithoutAPlace(t *testing.T) {
	run(t, func(c *cluster) {
		c.replying(workers.AtLeastOnce, "listener")
		c.ready("a")
		c.send("1")
		c.takes("1@a#1")[0].Done(answer("one"))
		c.takes()
		failure := func() string { return c.queues.List(key, "", 0, 1)[0].Error }
		require.Contains(t, failure(), "worker listener was not queued: the worker does not exist")
		to := c.worker("listener", func(s *workers.WorkerSpec) { s.QueueLimit = 1 })
		require.NoError(t, c.Send(listener, workers.QueueOf(to), []Message{{Message: queue.Message{ID: "in the way"}}})()[0])
		time.Sleep(time.Second)
		c.takes("1@a#2")[0].Done(answer("one"))
		c.takes()
		require.Contains(t, failure(), "the queue is full")
		require.True(t, c.queues.Withdraw(listener, "in the way"))
		time.Sleep(time.Second)
		c.takes("1@a#3")[0].Done(answer("one"))
		c.takes()
		require.Zero(t, c.queues.Depth(key))
		require.Equal(t, 1, c.queues.Depth(listener).Waiting)

		w := c.replying(workers.AtMostOnce, "nothing").DeepCopy()
		w.Generation++
		c.setWorker(w)
		c.send("2")
		c.takes("2@a#1")[0].Done(answer("two"))
		c.takes()
		require.Zero(t, c.queues.Depth(key))
		require.EqualValues(t, 1, c.state(key).counts.dropped)
	})
}

// TestRepliesWhileTheServerStops checks that a message stays in its queue if its reply is not in the other one.
func TestRepliesWhileTheServerStops(t *testing.T) {
	run(t, func(c *cluster) {
		c.replying(workers.AtLeastOnce, "listener")
		c.worker("listener", atLeastOnce)
		c.ready("a")
		c.send("1")
		d := c.takes("1@a#1")
		c.Stop()
		freed := false
		o := answer("late")
		o.Release = func() { freed = true }
		d[0].Done(o)
		synctest.Wait()
		require.True(t, freed)
		require.Equal(t, 1, c.queues.Depth(key).InFlight)
		require.Zero(t, c.queues.Depth(listener))
	})
}
