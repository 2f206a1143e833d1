package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestBacklogReachesNewPods checks that no pod gets more than it handles, and that pods that come later share the rest.
func TestBacklogReachesNewPods(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", atLeastOnce)
		c.ready("a")
		c.send("1", "2", "3", "4", "5")
		first := c.takes("1@a#1")
		require.Equal(t, "text 1", string(first[0].Payload))
		c.ready("b")
		c.ready("c")
		rest := c.takes("2@b#1", "3@c#1")
		rest[0].Done(handled)
		c.takes("4@" + rest[0].Pod + "#1")
		first[0].Done(handled)
		c.takes("5@a#1")
		d := c.queues.Depth(key)
		require.Equal(t, []int{0, 3}, []int{d.Waiting, d.InFlight})
	})
}

// TestIdleSinceTheLastMessageEnded checks that a worker is idle since the end of a long message, not since its arrival.
func TestIdleSinceTheLastMessageEnded(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", func(s *workers.WorkerSpec) { s.Scale = &workers.WorkerScale{Max: 1, IdleSeconds: 20} })
		c.ready("a")
		c.send("1")
		m := c.takes("1@a#1")[0]
		time.Sleep(25 * time.Second)
		m.Done(handled)
		ended := time.Now().UTC().Format(time.RFC3339)
		time.Sleep(publishEvery)
		synctest.Wait()
		last := c.patched()[len(c.patched())-1]
		require.Contains(t, last, `"lastMessageTime":"`+ended+`"`)
	})
}

// TestRetries checks the back-off, that any pod gets the next attempt, and that the message is dead after the last one.
func TestRetries(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", atLeastOnce)
		a := c.ready("a")
		c.send("1")
		d := c.takes("1@a#1")
		c.pod(a, false, false)
		d[0].Done(bad)
		c.takes()
		time.Sleep(firstDelay) // without a pod it waits
		c.takes()
		c.ready("b")
		c.takes("1@b#2")[0].Done(workers.Outcome{Failure: workers.ReceiverLost, Text: "gone"})
		c.takes("1@b#3")[0].Done(bad) // a lost receiver needs no pause
		c.takes()
		m, ok := c.queues.Find(key, "1")
		require.True(t, ok)
		require.Equal(t, queue.Dead, m.State)
		require.Equal(t, "HandlerFailed: bad", m.Error)
		require.Equal(t, 1, c.Redrive(key, ""))
		c.takes("1@b#1")[0].Done(handled)
		synctest.Wait()
		require.Empty(t, c.queues.Keys())
	})
}

// TestKeys checks that the messages with a key are handled one at a time and in order by several pods, that later ones
// wait for another attempt and for a sender that waits, and that a dead message releases its key.
func TestKeys(t *testing.T) {
	run(t, func(c *cluster) {
		w := c.worker("w", atLeastOnce)
		for _, pod := range []string{"a", "b", "c"} {
			c.ready(pod)
		}
		send := func(ids ...string) {
			list := make([]Message, len(ids))
			for i, id := range ids {
				list[i].Message = queue.Message{ID: id, OrderKey: id[:1]}
			}
			for _, err := range c.Send(key, workers.QueueOf(w), list)() {
				require.NoError(t, err)
			}
		}
		next := func(ids ...string) map[string]*workers.Delivery {
			list, _ := c.take()
			got := map[string]*workers.Delivery{}
			for _, d := range list {
				got[d.ID] = d
			}
			require.Len(t, got, len(ids))
			for _, id := range ids {
				require.Contains(t, got, id)
			}
			return got
		}
		send("x1", "x2", "y1", "x3", "y2")
		time.Sleep(time.Second)
		require.Contains(t, c.patched(), `{"status":{"delayed":3,"inFlight":2}}`, "blocked messages start no pods")
		got := next("x1", "y1")
		got["y1"].Done(handled)
		x := got["x1"]
		got = next("y2")
		for range 2 {
			x.Done(bad)
			next()
			time.Sleep(time.Second)
			x = next("x1")["x1"]
		}
		x.Done(bad)
		x = next("x2")["x2"] // x1 is dead
		require.Equal(t, 1, c.queues.Depth(key).Dead)
		x.Done(handled)
		x = next("x3")["x3"]

		out := make(chan Outcome, 1)
		require.NoError(t, c.Send(key, workers.QueueOf(w), []Message{{
			Message:  queue.Message{ID: "x4", OrderKey: "x"},
			Deadline: time.Now().Add(time.Minute), Done: func(o Outcome) { out <- o },
		}})()[0])
		send("x5")
		next()
		x.Done(handled)
		x = next("x4")["x4"]
		next()
		x.Done(handled)
		require.Empty(t, (<-out).Failure)
		x = next("x5")["x5"]
		x.Done(handled)
		got["y2"].Done(handled)
		next()
	})
}

// TestRememberedDeadLetters checks that remembered DedupIDs do not hold up dead letters: each gets to its worker, also
// when it returns to the queue that remembers it.
func TestRememberedDeadLetters(t *testing.T) {
	run(t, func(c *cluster) {
		to := func(name, next string) {
			c.worker(name, func(s *workers.WorkerSpec) {
				s.Delivery = workers.WorkerDelivery{Promise: workers.AtLeastOnce, MaxAttempts: 1, DeadLetter: next}
			})
		}
		to("w", "failed")
		to("failed", "w")
		c.ready("a")
		send := func(k queue.Key, id string) error {
			w := c.workers[types.NamespacedName{Namespace: k.Namespace, Name: k.Worker}]
			m := Message{Message: queue.Message{ID: id, DedupID: "order", Payload: []byte("text")}}
			return c.Send(k, workers.QueueOf(w), []Message{m})()[0]
		}
		failed := queue.Key{Namespace: "ns", Worker: "failed"}
		require.NoError(t, send(failed, "0"))
		require.NoError(t, send(key, "1"))
		c.takes("1@a#1")[0].Done(bad)
		c.takes()
		require.Zero(t, c.queues.Depth(key))
		require.Equal(t, 2, c.queues.Depth(failed).Waiting)
		require.Equal(t, &queue.DuplicateError{ID: "1"}, send(key, "2"))
		require.EqualValues(t, 1, c.state(key).counts.duplicate)

		m, ok := c.queues.Claim(failed, "b")
		require.True(t, ok)
		require.Equal(t, "0", m.ID)
		c.queues.Acknowledge(failed, "0")
		m, ok = c.queues.Claim(failed, "b")
		require.True(t, ok)
		c.queues.Return(failed, m.ID, queue.Result{Dead: true, Error: "bad"})
		c.state(failed).forward()
		c.takes("1@a#1")[0].Done(handled)
		c.takes()
		require.Equal(t, &queue.DuplicateError{ID: "1"}, send(key, "3"))
		time.Sleep(queue.Window)
		require.NoError(t, send(key, "4"))
		c.takes("4@a#1")[0].Done(handled)
		c.takes()
	})
}

func TestDeadLetters(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", func(s *workers.WorkerSpec) {
			s.Delivery = workers.WorkerDelivery{Promise: workers.AtLeastOnce, MaxAttempts: 1, DeadLetter: "failed"}
		})
		c.ready("a")
		c.send("1")
		c.takes("1@a#1")[0].Done(bad)
		c.takes()
		require.Equal(t, 1, c.queues.Depth(key).Dead, "it stays while its worker does not exist")
		c.worker("failed", atLeastOnce)
		c.takes()
		require.Zero(t, c.queues.Depth(key).Dead)
		m, ok := c.queues.Find(queue.Key{Namespace: "ns", Worker: "failed"}, "1")
		require.True(t, ok, "with the same ID")
		require.Equal(t, "HandlerFailed: bad", m.DeadLetter)
		require.True(t, m.Durable)
		require.Equal(t, "text 1", string(m.Payload))
	})
}

func TestAtMostOnce(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", nil)
		c.ready("a")
		c.send("1", "2")
		c.takes("1@a#1")[0].Done(bad)
		d := c.takes("2@a#1") // the first does not come again
		d[0].Done(workers.Outcome{Failure: workers.NoReceiver, Untouched: true})
		c.takes()
		time.Sleep(restTime)
		c.takes("2@a#1")[0].Done(handled) // no program had it
		synctest.Wait()
		require.Empty(t, c.queues.Keys())
	})
}

func TestSendersThatWait(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", atLeastOnce)
		got := c.call("1", time.Minute)
		synctest.Wait()
		require.Equal(t, []string{`{"status":{"depth":1}}`}, c.patched(), "a pod may have to start")
		time.Sleep(time.Minute)
		o := <-got
		require.Equal(t, workers.NoReceiver, o.Failure, "no pod was there")
		require.Empty(t, c.queues.Keys())

		c.ready("a")
		got = c.call("2", time.Minute)
		d := c.takes("2@a#1")
		require.False(t, d[0].Deadline.IsZero())
		d[0].Done(workers.Outcome{Payload: []byte("reply")})
		o = <-got
		require.Equal(t, "reply", string(o.Payload))
		require.Equal(t, "a", o.Pod)

		got = c.call("3", time.Minute)
		d = c.takes("3@a#1")
		time.Sleep(time.Minute)
		require.Equal(t, workers.HandlerTimeout, (<-got).Failure)
		released := false
		d[0].Done(workers.Outcome{Release: func() { released = true }})
		require.True(t, released, "the reply is dropped")

		first, second := c.call("4", time.Minute), c.call("5", time.Minute)
		d = c.takes("4@a#1")
		c.Cancel(key, "5")
		require.Equal(t, workers.HandlerTimeout, (<-second).Failure)
		d[0].Done(bad)
		time.Sleep(firstDelay)
		c.takes("4@a#2")[0].Done(handled) // the canceled one does not come
		require.Empty(t, (<-first).Failure)
		c.takes()
		require.Empty(t, c.queues.Keys())
		require.Empty(t, c.states[key].waits)
	})
}

// TestRefusedTooLate checks that a sender gets one outcome if its deadline passes while its message is refused.
func TestRefusedTooLate(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", nil)
		s, outcomes := c.state(key), 0
		m := Message{Message: queue.Message{ID: "1"}, Deadline: time.Now(), Done: func(Outcome) { outcomes++ }}
		s.mu.Lock()
		s.waits["1"] = s.newWait(&m)
		s.mu.Unlock()
		synctest.Wait() // the deadline passes
		errs := []error{queue.ErrFull}
		s.accepted([]Message{m}, errs)
		require.Equal(t, []error{nil}, errs)
		require.Equal(t, 1, outcomes)
		require.Empty(t, s.waits)
	})
}

func TestExpiry(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", func(s *workers.WorkerSpec) { atLeastOnce(s); s.QueueSeconds = 5 })
		c.send("1")
		got := c.call("2", time.Minute)
		time.Sleep(5 * time.Second)
		require.Equal(t, workers.HandlerTimeout, (<-got).Failure)
		synctest.Wait()
		require.Equal(t, queue.Depth{Dead: 1}, c.queues.Depth(key))
	})
}

// TestTargets checks that a message for a pod waits for the pod, and that another pod gets it when the pod is gone.
func TestTargets(t *testing.T) {
	run(t, func(c *cluster) {
		w := c.worker("w", atLeastOnce)
		b := c.ready("b")
		c.send("1")
		d := c.takes("1@b#1")
		c.ready("a")
		require.NoError(t, c.Send(key, workers.QueueOf(w), []Message{{Message: queue.Message{ID: "2", Target: "b"}}})()[0])
		c.takes()
		d[0].Done(handled)
		d = c.takes("2@b#1")
		c.pod(b, false, true)
		d[0].Done(workers.Outcome{Failure: workers.NoReceiver, Untouched: true})
		require.Equal(t, queue.Depth{Waiting: 1, Oldest: c.queues.Depth(key).Oldest}, c.queues.Depth(key))
	})
}

// TestWorkerIsDeleted checks that its messages end, and that nothing of it stays in memory.
func TestWorkerIsDeleted(t *testing.T) {
	run(t, func(c *cluster) {
		w := c.worker("w", atLeastOnce)
		a := c.ready("a")
		c.send("1", "2")
		d := c.takes("1@a#1")
		got := c.call("3", time.Minute)
		c.workerGone(w)
		require.Equal(t, workers.NoReceiver, (<-got).Failure)
		require.Equal(t, 0, c.queues.Depth(key).Waiting)
		d[0].Done(workers.Outcome{Failure: workers.ReceiverLost})
		synctest.Wait()
		c.pod(a, false, true)
		synctest.Wait()
		require.Empty(t, c.queues.Keys())
		require.Empty(t, c.states)
	})
}

// TestServerStartsAgain checks that a message whose last attempt a former process made is not given away once more.
func TestServerStartsAgain(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", func(s *workers.WorkerSpec) { atLeastOnce(s); s.Delivery.MaxAttempts = 1 })
		c.send("1")
		_, ok := c.queues.Claim(key, "x")
		require.True(t, ok)
		c.queues.Return(key, "1", queue.Result{}) // as a restart does
		c.ready("a")
		c.takes()
		require.Equal(t, 1, c.queues.Depth(key).Dead)
	})
}

// TestUnreachableNode checks that a message for a node that cannot be reached waits, and goes to another pod.
func TestUnreachableNode(t *testing.T) {
	run(t, func(c *cluster) {
		c.worker("w", atLeastOnce)
		far := c.ready("far")
		c.pod(far, false, false)
		far.Spec.NodeName = "far"
		c.pod(far, true, false)
		c.send("1")
		c.takes()
		c.ready("a")
		c.takes("1@a#1")[0].Done(handled)
	})
}

func TestMetrics(t *testing.T) {
	run(t, func(c *cluster) {
		r := prometheus.NewRegistry()
		r.MustRegister(c.Metrics())
		c.worker("w", atLeastOnce)
		c.ready("a")
		c.send("1", "2")
		c.takes("1@a#1")[0].Done(handled)
		synctest.Wait()
		families, err := r.Gather()
		require.NoError(t, err)
		values := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			require.Equal(t, "w", m.GetLabel()[1].GetValue())
			values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		require.EqualValues(t, 2, values["coracle_messages_accepted_total"])
		require.EqualValues(t, 2, values["coracle_messages_delivered_total"])
		require.EqualValues(t, 1, values["coracle_messages_succeeded_total"])
		require.EqualValues(t, 1, values["coracle_messages_in_flight"])
		require.Zero(t, values["coracle_messages_depth"])
	})
}
