package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const subjects = `
apiVersion: workers.coracle.dev/v1alpha1
kind: Worker
metadata: {name: orders}
spec:
  function: echo
  parameters: {prefix: GOT}
  triggers:
  - nats: {subject: default.ask}
  - nats: {subject: "default.orders.*", stream: ORDERS}
  delivery: {promise: AtLeastOnce, repliesSubject: default.done}
`

// TestWorkersOnNATSSubjects has a worker answer requests, and publish its replies to the messages of a stream on
// another stream's subject: each once, although the server is killed in the middle. Subjects of others are refused.
func TestWorkersOnNATSSubjects(t *testing.T) {
	h := host.New(t)
	context := filepath.Join(t.TempDir(), "context.json")
	text, err := json.Marshal(map[string]string{"url": "nats://127.0.0.1:4222"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(context, text, 0o600))
	h.Start("--nats-context", context, "--nats-subjects", "{namespace}.>")
	h.Apply(subjects)
	failure := func(i int, want string) {
		h.Shows(want, fmt.Sprintf("get worker orders -o jsonpath={.status.triggers[%d].failure}.", i))
	}
	failure(0, "no connection to the NATS servers")

	b := newBroker(t, h)
	b.open()
	failure(1, "stream not found")
	c, err := nats.Connect("", nats.InProcessServer(b.Server))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	js, err := jetstream.New(c)
	require.NoError(t, err)
	stream := func(name, subject string) jetstream.Stream {
		s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
		require.NoError(t, err)
		return s
	}
	orders, done := stream("ORDERS", "default.orders.*"), stream("DONE", "default.done")
	var reply *nats.Msg
	require.Eventually(t, func() bool {
		reply, err = c.Request("default.ask", []byte("hello"), host.Patience)
		return err == nil // there are no responders before
	}, host.Patience, 100*time.Millisecond)
	require.Equal(t, "GOT: hello", string(reply.Data))

	publish := func(from, to int) {
		for i := from; i < to; i++ {
			_, err := js.Publish(t.Context(), "default.orders.new", []byte(fmt.Sprint("order ", i)))
			require.NoError(t, err)
		}
	}
	publish(0, 100)
	h.Kill()
	publish(100, 200)
	h.Run("start", "--nats-context", context, "--nats-subjects", "{namespace}.>")
	replies, err := done.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	seen := map[string]bool{}
	for len(seen) < 200 {
		m, err := replies.Next(jetstream.FetchMaxWait(host.Patience))
		require.NoError(t, err, "%d of 200 replies", len(seen))
		require.False(t, seen[string(m.Data())], "%s came twice", m.Data())
		seen[string(m.Data())] = true
	}
	require.True(t, seen["GOT: order 199"])

	patch := func(spec string) string {
		return h.Fails("ctl", "patch", "worker", "orders", "--type=merge", "-p", `{"spec":`+spec+`}`)
	}
	require.Contains(t, patch(`{"triggers":[{"nats":{"subject":"kube-system.x"}}]}`), "server's option nats-subjects")
	require.Contains(t, patch(`{"triggers":[{"nats":{"subject":"$JS.API.>"}}]}`), "internal subject")
	require.Contains(t, patch(`{"delivery":{"repliesSubject":"default.*"}}`), "must not have wildcards")
	h.Ctl("delete worker orders")
	require.Eventually(t, func() bool {
		info, err := orders.Info(t.Context())
		return err == nil && info.State.Consumers == 0
	}, host.Patience, 100*time.Millisecond)
}
