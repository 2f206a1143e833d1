package e2e

import (
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/coracle-dev/coracle/test/host"
)

// broker is a NATS server in this process. Clients in a host's network reach it while a door is open.
type broker struct {
	t *testing.T
	h *host.Host
	*server.Server
	address string

	mu    sync.Mutex
	conns []net.Conn
	all   sync.WaitGroup
}

func newBroker(t *testing.T, h *host.Host) *broker {
	s, err := server.NewServer(&server.Options{
		DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	})
	require.NoError(t, err)
	s.Start()
	require.True(t, s.ReadyForConnections(host.Patience))
	b := &broker{t: t, h: h, Server: s, address: "127.0.0.1:4222"}
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return b
}

// open lets clients connect until shut is called.
func (b *broker) open() (shut func()) {
	l, err := b.h.Listen("tcp", b.address)
	require.NoError(b.t, err)
	b.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := b.InProcessConn()
			if err != nil {
				_ = c.Close()
				continue
			}
			b.mu.Lock()
			b.conns = append(b.conns, c, to)
			b.mu.Unlock()
			for _, pair := range [][2]net.Conn{{c, to}, {to, c}} {
				b.all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	shut = sync.OnceFunc(func() {
		_ = l.Close()
		b.mu.Lock()
		for _, c := range b.conns {
			_ = c.Close()
		}
		b.mu.Unlock()
		b.all.Wait()
	})
	b.t.Cleanup(shut)
	return shut
}

// streams returns the number of streams and of the messages in them.
func (b *broker) streams() (streams int, messages uint64) {
	c, err := nats.Connect("", nats.InProcessServer(b.Server))
	require.NoError(b.t, err)
	defer c.Close()
	js, err := jetstream.New(c)
	require.NoError(b.t, err)
	for info := range js.ListStreams(b.t.Context()).Info() {
		streams++
		messages += info.State.Msgs
	}
	return streams, messages
}

// TestMessagesInNATS keeps a worker's messages in NATS: they survive the server's kill, an outage of NATS refuses
// messages with its reason, and the worker's deletion deletes them.
func TestMessagesInNATS(t *testing.T) {
	h := host.New(t)
	context := filepath.Join(t.TempDir(), "context.json")
	text, err := json.Marshal(map[string]string{"url": "nats://127.0.0.1:4222", "description": "test"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(context, text, 0o600))
	h.Start("--nats-context", context)
	h.Apply(fmt.Sprintf(shell, "orders", "cat /tmp/message",
		"\n  replicas: 0\n  delivery: {promise: AtLeastOnce, store: NATS}\n"))
	require.Contains(t, h.Fails("send", "service/orders", "early"), "no connection to the NATS servers")
	h.Ctl("wait worker/orders --for=condition=Queue=False --timeout=60s")
	h.Shows("no connection to the NATS servers", "describe worker orders")

	b := newBroker(t, h)
	shut := b.open()
	h.Ctl("wait worker/orders --for=condition=Queue --timeout=60s")
	lines := ""
	for i := range 50 {
		lines += fmt.Sprintln("order", i)
	}
	ids := strings.Fields(h.Pipe(lines, "send", "service/orders", "-f", "-", "--batch"))
	require.Len(t, ids, 50)
	large := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(large, make([]byte, 1<<20), 0o600))
	require.Contains(t, h.Fails("send", "service/orders", "-f", large), "too large for the NATS servers")

	h.Kill()
	_, err = os.Stat(filepath.Join(h.DataDir, "queues.db"))
	require.ErrorIs(t, err, os.ErrNotExist, "the messages are elsewhere")
	h.Run("start", "--nats-context", context)
	list := queued(t, h, "orders", "list")
	require.Len(t, list, 50)
	for i := range list {
		require.Equal(t, ids[i], list[i].ID, "in their order")
	}
	require.Contains(t, h.Run("queue", "orders", "show", ids[7]), "order 7")

	shut()
	h.Ctl("wait worker/orders --for=condition=Queue=False --timeout=60s")
	require.Contains(t, h.Fails("send", "service/orders", "late"), "NATS")
	b.open()
	h.Ctl("wait worker/orders --for=condition=Queue --timeout=60s")
	h.Run("send", "service/orders", "last")
	h.Ctl("scale worker/orders --replicas=2")
	h.Ctl("wait worker/orders --for=jsonpath={.status.depth}=0 --timeout=300s")
	h.Ctl("wait worker/orders --for=jsonpath={.status.inFlight}=0 --timeout=60s")
	require.Contains(t, h.Ctl(`patch worker orders --type=merge -p {"spec":{"queueLimit":7}}`), "patched")
	require.Contains(t, h.Fails("ctl", "patch", "worker", "orders", "--type=merge", "-p",
		`{"spec":{"delivery":{"store":"Local"}}}`), "cannot be changed")
	require.Eventually(t, func() bool {
		streams, messages := b.streams()
		return streams == 1 && messages == 1 // the one that names the server
	}, host.Patience, 100*time.Millisecond)
	h.Ctl("delete worker orders")
	require.Eventually(t, func() bool { streams, _ := b.streams(); return streams == 0 }, host.Patience,
		100*time.Millisecond)
}
