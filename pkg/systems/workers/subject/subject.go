// Package subject connects workers with subjects of a user's NATS servers: as sources of messages (spec.triggers) and
// as sinks of replies (spec.delivery.repliesSubject).
//
// Its invariants: a message of a stream is acknowledged only after the worker's queue has accepted it, and a subject is
// used only if the server's option allows it to the worker's namespace. The sources are bounded, and for each of them
// what has arrived and is not in the queue.
package subject

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// Config configures New. All fields are required.
type Config struct {
	NATS *queue.NATS
	// Allowed is the server's option nats-subjects.
	Allowed []string
	// Send queues messages of a worker and returns an error for each.
	Send func(ctx context.Context, worker types.NamespacedName, list []dispatch.Message) []error
	// Texts are what the sender of a request learns about failures.
	Texts  map[workers.Failure]string
	Events *events.Recorder
}

// Subjects is safe for concurrent use. Its methods do not block, except Publish and Close.
type Subjects struct {
	c       Config
	ackWait time.Duration // after it, NATS delivers a message again that is not acknowledged
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup // sources, and answers to requests

	mu      sync.Mutex
	changed func(worker types.NamespacedName)
	sources map[key]*source
	share   *connlimit.Share[string] // of the sources, by namespace
}

// key identifies a source.
type key struct {
	uid types.UID
	workers.NATSTrigger
}

// Bounds of the sources of a server and of a namespace, and of what of one source has arrived and is not in the queue.
const (
	maxSources     = 256
	maxSourcesEach = 64
	maxUnread      = 1024 // messages
	maxUnreadBytes = 4 << 20
	maxBatch       = 64
	maxFailure     = 512 // bytes
	maxContentType = 256
	timeout        = 5 * time.Second
)

// New returns Subjects without sources.
func New(c Config) *Subjects {
	s := &Subjects{
		c: c, ackWait: 30 * time.Second, changed: func(types.NamespacedName) {}, sources: map[key]*source{},
		share: connlimit.NewShare[string](maxSources, maxSourcesEach),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Notify has f called when Set may return something else for a worker. f must not block.
func (s *Subjects) Notify(f func(worker types.NamespacedName)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = f
}

// Set has the messages of a worker's subjects sent to it, and returns the failures of its triggers by their indexes. It
// ends other sources of the worker and deletes their consumers.
func (s *Subjects) Set(w *workers.Worker) map[int]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures, wanted := map[int]string{}, map[key]bool{}
	for i := range w.Spec.Triggers {
		t := w.Spec.Triggers[i].NATS
		if t == nil {
			continue
		}
		k := key{w.UID, *t}
		wanted[k] = true
		if s.sources[k] == nil {
			if !s.share.Enter(w.Namespace) {
				failures[i] = fmt.Sprintf("a server reads at most %d NATS subjects, %d of a namespace", maxSources, maxSourcesEach)
				continue
			}
			s.sources[k] = s.start(client.ObjectKeyFromObject(w), k)
		}
		failures[i] = s.sources[k].failure
	}
	s.end(client.ObjectKeyFromObject(w), wanted, true)
	return failures
}

// Stop ends the sources of a worker. If it is gone, their consumers are deleted.
func (s *Subjects) Stop(worker types.NamespacedName, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(worker, nil, gone)
}

func (s *Subjects) end(worker types.NamespacedName, but map[key]bool, remove bool) {
	for k, have := range s.sources {
		if have.worker == worker && !but[k] {
			have.remove = have.remove || remove
			have.cancel()
		}
	}
}

// StopAll ends all sources. Requests that were queued are still answered.
func (s *Subjects) StopAll() { s.stop() }

// Close waits for the sources and the answers. It is called once the queues have ended.
func (s *Subjects) Close() {
	s.stop()
	s.running.Wait()
}

// connect returns the connection, if the workers of a namespace may use the subject.
func (s *Subjects) connect(namespace, subject string) (*nats.Conn, jetstream.JetStream, error) {
	conn, js, err := s.c.NATS.Connect()
	if err != nil {
		return nil, nil, err
	}
	why := workers.AllowSubject(s.c.Allowed, namespace, subject)
	for _, internal := range []string{conn.Opts.InboxPrefix, js.Options().APIPrefix} {
		if internal != "" && workers.MatchSubject(internal+".>", subject, true) {
			why = "NATS uses " + internal + ".> itself"
		}
	}
	switch {
	case why != "":
		return nil, nil, fmt.Errorf("the subject %s is refused: %s", subject, why)
	case !conn.IsConnected():
		return nil, nil, errLost
	}
	return conn, js, nil
}

// Headers of messages beside the usual ones.
const (
	headerTrace = "traceparent"
	headerHops  = "Coracle-Message-Hops"
	headerError = "Nats-Service-Error" // as for micro services of NATS
	headerCode  = "Nats-Service-Error-Code"
)

// Publish sends a reply to a subject. When it returns nil, the JetStream stream with the subject has the message or, if
// there is none, the NATS servers have it.
func (s *Subjects) Publish(namespace, subject string, m queue.Message) error {
	conn, js, err := s.connect(namespace, subject)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out := &nats.Msg{Subject: subject, Data: m.Payload, Header: nats.Header{
		nats.MsgIdHdr: {m.DedupID}, headerHops: {strconv.Itoa(m.Hops)},
	}}
	for name, value := range map[string]string{"Content-Type": m.ContentType, headerTrace: m.Trace} {
		if value != "" {
			out.Header.Set(name, value)
		}
	}
	// A publish with acknowledgement needs a stream with the subject. Without one, another subscriber may answer
	// instead, or no subscriber at all.
	_, err = js.StreamNameBySubject(ctx, subject)
	switch {
	case err == nil:
		_, err = js.PublishMsg(ctx, out)
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrJetStreamNotEnabled),
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount), errors.Is(err, nats.ErrNoResponders):
		if err = conn.PublishMsg(out); err == nil {
			err = conn.FlushWithContext(ctx)
		}
	}
	return err
}
