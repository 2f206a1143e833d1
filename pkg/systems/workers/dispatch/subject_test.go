package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// published is a reply on a NATS subject.
type published struct {
	namespace, subject string
	queue.Message
}

func (c *cluster) publish(namespace, subject string, m queue.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal == nil {
		c.published = append(c.published, published{namespace, subject, m})
	}
	return c.refusal
}

func (c *cluster) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = err
}

// TestRepliesToASubject checks which replies are published on a NATS subject, and that a message has failed if its
// reply is not.
func TestRepliesToASubject(t *testing.T) {
	run(t, func(c *cluster) {
		w := c.worker("w", func(s *workers.WorkerSpec) {
			s.Delivery = workers.WorkerDelivery{Promise: workers.AtLeastOnce, MaxAttempts: 3, RepliesSubject: "ns.done"}
		})
		c.ready("a")
		send := func(m queue.Message) {
			require.NoError(t, c.Send(key, workers.QueueOf(w), []Message{{Message: m}})()[0])
		}
		send(queue.Message{ID: "1", Trace: "t"})
		c.refuse(errors.New("NATS is down"))
		c.takes("1@a#1")[0].Done(answer("one"))
		c.takes()
		require.Contains(t, c.queues.List(key, "", 0, 1)[0].Error, "NATS subject ns.done was not published: NATS is down")
		c.refuse(nil)
		time.Sleep(time.Second)
		d := c.takes("1@a#2")[0]
		to := d.Begin("text/plain")
		_, err := to.Write([]byte("in parts"))
		require.NoError(t, err)
		d.Done(handled)
		c.takes()
		require.Zero(t, c.queues.Depth(key))
		require.Len(t, c.published, 1)
		m := c.published[0]
		require.Equal(t, []any{"ns", "ns.done", "in parts", "text/plain", "reply 1", "t", 1},
			[]any{m.namespace, m.subject, string(m.Payload), m.ContentType, m.DedupID, m.Trace, m.Hops})

		got := c.call("2", time.Minute)
		c.takes("2@a#1")[0].Done(answer("for the caller"))
		require.Equal(t, "for the caller", string((<-got).Payload))
		c.send("3")
		c.takes("3@a#1")[0].Done(handled)
		send(queue.Message{ID: "4", Hops: maxHops})
		c.takes("4@a#1")[0].Done(answer("a loop"))
		c.takes()
		require.Zero(t, c.queues.Depth(key))
		require.Len(t, c.published, 1, "no reply that a caller gets, no empty one, and loops end")
	})
}
