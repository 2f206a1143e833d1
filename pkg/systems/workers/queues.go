package workers

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	"github.com/coracle-dev/coracle/pkg/systems/workers/spans"
	"github.com/coracle-dev/coracle/pkg/systems/workers/trigger"
)

// queuesFile is the database of messages below the server's data directory. diskReserve is the free space of the disk,
// in bytes, that messages leave to the store.
const (
	queuesFile  = "queues.db"
	diskReserve = 256 << 20
)

// queues is the component that keeps the queues of a server.
type queues struct {
	host     system.Server
	of       *messaging
	messages *queue.Local
	dispatch *dispatch.Dispatcher
	run.Readiness
}

func (m *messaging) serve(s system.Server) run.Component { return &queues{host: s, of: m} }

func (q *queues) Name() string { return "message-queues" }

// Run implements run.Component.
func (q *queues) Run(ctx context.Context) (err error) {
	var traces *spans.Spans
	if file := q.host.MessageTracing; file != "" {
		out, ratio, err := spans.Load(file)
		if err != nil {
			return fmt.Errorf("message-tracing-config %s: %w", file, err)
		}
		traces = spans.New(out, ratio, q.host.Name, q.host.Metrics, q.host.Log)
	}
	defer traces.Close()
	nats := &queue.NATS{Context: q.host.NATSContext, Name: "coracle " + q.host.Name}
	defer nats.Close()
	c := queue.Config{
		Logger: q.host.Log, Reserve: diskReserve, NATS: nats, Changed: func(k queue.Key) { q.dispatch.Changed(k) },
	}
	if q.host.Dir != "" {
		c.File = filepath.Join(q.host.Dir, queuesFile)
	}
	if q.messages, err = queue.Open(c); err != nil {
		return err
	}
	recorder := events.New(q.host.Client, "message-queues", q.host.Name, q.host.Log)
	q.dispatch = dispatch.New(dispatch.Config{
		Queues: q.messages, Client: q.host.Client, Local: q.of.local, Connect: q.host.Connect, Server: q.host.Name,
		Events: recorder, Logger: q.host.Log, Spans: traces,
	})
	if err := q.dispatch.Start(ctx); err != nil {
		return err
	}
	q.host.Metrics.MustRegister(q.dispatch.Metrics())
	q.of.queues.Store(q)
	q.SetReady()
	guard := run.Guard{Log: q.host.Log, Component: q.Name()}
	var triggers sync.WaitGroup
	triggers.Go(func() { guard.Loop(ctx, "triggers", func(ctx context.Context) { q.trigger(ctx, recorder) }) })
	recorder.Run(ctx) // until ctx is done
	triggers.Wait()
	q.of.queues.Store(nil)
	q.dispatch.Stop()
	return q.messages.Close()
}

// trigger sends the messages of schedules until ctx is done.
func (q *queues) trigger(ctx context.Context, recorder *events.Recorder) {
	err := trigger.Run(ctx, trigger.Config{
		Client: q.host.Client, Send: q.post, Elsewhere: q.elsewhere, Events: recorder, Logger: q.host.Log,
	})
	if err != nil && ctx.Err() == nil {
		q.host.Log.Error("schedules of workers send no messages until this server restarts", "error", err)
	}
}

// local returns the agent of a node, or nil if it is not in this process.
func (m *messaging) local(name string) dispatch.Node {
	if n := m.here.Load(); n != nil && n.name == name {
		return n
	}
	return nil
}
