package subject

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a NATS server in this process.
type broker struct {
	t    *testing.T
	dir  string
	port int
	*server.Server
}

func newBroker(t *testing.T) *broker {
	b := &broker{t: t, dir: t.TempDir(), port: server.RANDOM_PORT}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: b.port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: b.dir, MaxPayload: 8 << 20,
	})
	require.NoError(b.t, err)
	s.Start()
	require.True(b.t, s.ReadyForConnections(time.Minute))
	b.Server, b.port = s, s.Addr().(*net.TCPAddr).Port
}

func (b *broker) stop() {
	b.Shutdown()
	b.WaitForShutdown()
}

// client returns a connection of a user's.
func (b *broker) client() (*nats.Conn, jetstream.JetStream) {
	c, err := nats.Connect(b.ClientURL(), nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1))
	require.NoError(b.t, err)
	b.t.Cleanup(c.Close)
	js, err := jetstream.New(c)
	require.NoError(b.t, err)
	return c, js
}

func (b *broker) context(fields map[string]string) string {
	path := filepath.Join(b.t.TempDir(), "context.json")
	fields["url"] = b.ClientURL()
	text, err := json.Marshal(fields)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(path, text, 0o600))
	return path
}

// home is a server that keeps the queue of the worker ns/w.
type home struct {
	*Subjects
	t       *testing.T
	nats    *queue.NATS
	got     chan dispatch.Message
	changed chan types.NamespacedName
	events  chan *corev1.Event

	mu      sync.Mutex
	refusal error  // of Send
	sent    func() // is called after messages were queued
}

// happening is the client of a recorder of events.
type happening struct {
	client.Interface
	list chan *corev1.Event
}

func (h happening) Create(_ context.Context, o ctrl.Object, _ ...ctrl.CreateOption) error {
	h.list <- o.(*corev1.Event)
	return nil
}

// Patch drops an event's repetition, such as a retry of a full queue on a slow machine.
func (h happening) Patch(context.Context, ctrl.Object, ctrl.Patch, ...ctrl.PatchOption) error {
	return nil
}

func newHome(t *testing.T, natsContext string) *home {
	h := &home{
		t: t, nats: &queue.NATS{Context: natsContext, Name: "test"}, got: make(chan dispatch.Message, 1000),
		changed: make(chan types.NamespacedName, 1000), events: make(chan *corev1.Event, 1000), sent: func() {},
	}
	recorder := events.New(happening{list: h.events}, "test", "", nil)
	h.Subjects = New(Config{
		NATS: h.nats, Allowed: []string{"{namespace}.>", "shared.*"}, Send: h.send, Events: recorder,
		Texts: map[workers.Failure]string{workers.HandlerFailed: "it failed", workers.QueueFull: "it is full"},
	})
	h.ackWait = time.Second
	h.Notify(func(w types.NamespacedName) { h.changed <- w })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { recorder.Run(ctx); close(done) }()
	t.Cleanup(func() {
		h.Close()
		h.nats.Close()
		cancel()
		<-done
	})
	return h
}

func (h *home) send(_ context.Context, worker types.NamespacedName, list []dispatch.Message) []error {
	require.Equal(h.t, nsW, worker)
	h.mu.Lock()
	refusal, sent := h.refusal, h.sent
	h.mu.Unlock()
	errs := make([]error, len(list))
	for i, m := range list {
		if errs[i] = refusal; refusal == nil {
			h.got <- m
		}
	}
	sent()
	return errs
}

func (h *home) set(refusal error, sent func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusal, h.sent = refusal, sent
}

var nsW = types.NamespacedName{Namespace: "ns", Name: "w"}

func worker(list ...workers.NATSTrigger) *workers.Worker {
	w := &workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w", UID: "uid"}}
	for i := range list {
		w.Spec.Triggers = append(w.Spec.Triggers, workers.WorkerTrigger{NATS: &list[i]})
	}
	return w
}

// follow sets the worker's subjects and waits until the first one has a failure with the text, or none if it is empty.
func (h *home) follow(w *workers.Worker, text string) {
	late := time.After(time.Minute)
	for {
		failure := h.Set(w)[0]
		if text == "" && failure == "" || text != "" && strings.Contains(failure, text) {
			return // other failures may come first, such as JetStream's while its server stops
		}
		select {
		case <-h.changed:
		case <-late:
			h.t.Fatalf("expected %q, have %q", text, failure)
		}
	}
}

func (h *home) next() dispatch.Message {
	select {
	case m := <-h.got:
		return m
	case <-time.After(time.Minute):
		h.t.Fatal("no message")
		panic("unreachable")
	}
}

func (h *home) event(reason string) string {
	for {
		select {
		case e := <-h.events:
			if e.Reason == reason {
				require.EqualValues(h.t, "uid", e.InvolvedObject.UID)
				return e.Message
			}
		case <-time.After(time.Minute):
			h.t.Fatal("no event " + reason)
		}
	}
}
