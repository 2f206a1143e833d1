package workers

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// TestQueueUnavailable checks that senders get QueueUnavailable with the reason while NATS is down, that the worker's
// status says so, and that messages are accepted again afterwards, with the earlier ones still there.
func TestQueueUnavailable(t *testing.T) {
	dir, port := t.TempDir(), server.RANDOM_PORT
	start := func() *server.Server {
		s, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir,
		})
		require.NoError(t, err)
		s.Start()
		require.True(t, s.ReadyForConnections(time.Minute))
		port = s.Addr().(*net.TCPAddr).Port
		return s
	}
	stop := func(s *server.Server) {
		s.Shutdown()
		s.WaitForShutdown()
	}
	running := start()
	t.Cleanup(func() { stop(running) }) // after the queue's end
	context := filepath.Join(t.TempDir(), "context.json")
	text, err := json.Marshal(map[string]string{"url": running.ClientURL()})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(context, text, 0o600))
	w := &workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w", UID: "uid"}}
	w.Spec.Image = "i"
	w.Spec.Delivery = workers.WorkerDelivery{Promise: workers.AtLeastOnce, Store: workers.StoreNATS}
	workers.Default(w)
	w.Status.QueueServer = "s"
	nats := &queue.NATS{Context: context, Name: "test"}
	t.Cleanup(nats.Close)
	on := newStreamingIn(t, *workers.QueueOf(w), nats, w)
	srv, _ := on.serve(nil, t, ann)
	post := poster(t, srv)
	require.NoError(t, on.queues.dispatch.Open(queueW, on.config))
	code, _, body := post("", "one")
	require.Equal(t, http.StatusAccepted, code, body)
	(<-on.came).Done(workers.Outcome{Failure: workers.NoReceiver, Untouched: true}) // it stays in the queue

	// failure waits for the next failure in the worker's status.
	failure := func() string {
		for {
			var p struct{ Status map[string]any }
			require.NoError(t, json.Unmarshal([]byte(<-on.patches), &p))
			if f, ok := p.Status["queueFailure"].(string); ok {
				return f
			}
		}
	}
	stop(running)
	require.Contains(t, failure(), "NATS")
	code, head, body := post("", "two")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "QueueUnavailable", head.Get("X-Reason"))
	require.Contains(t, body, "NATS")

	running = start()
	for failure() != "" { // the reason changes meanwhile
	}
	code, _, body = post("", "three")
	require.Equal(t, http.StatusAccepted, code, body)
	depth := on.queues.messages.Depth(queueW)
	require.Equal(t, 2, depth.Waiting+depth.InFlight)
}
