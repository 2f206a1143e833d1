package subject

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// source has the messages of one trigger sent to its worker.
type source struct {
	*Subjects
	key    key
	worker types.NamespacedName
	ctx    context.Context
	cancel context.CancelFunc
	back   chan struct{} // the connection is back

	full bool // the queue took no message; only for deliver

	// Guarded by mu.
	failure    string             // why no message can come
	remove     bool               // the consumer is deleted at the end
	broken     context.CancelFunc // has a stream's reader begin again
	subscribed bool               // the client library subscribes again when the connection is back
}

const (
	// retryAfter is the pause after a source has failed, fullPause after the queue took no message.
	retryAfter = 5 * time.Second
	fullPause  = time.Second
	// abandoned is when NATS deletes a consumer that no server uses, since the stream may keep messages for it.
	abandoned = 7 * 24 * time.Hour
)

var errLost = errors.New("the connection to the NATS servers is lost")

func (s *Subjects) start(worker types.NamespacedName, k key) *source {
	f := &source{
		Subjects: s, key: k, worker: worker, back: make(chan struct{}, 1), failure: "not subscribed yet", broken: func() {},
	}
	f.ctx, f.cancel = context.WithCancel(s.ctx)
	s.running.Go(f.run)
	return f
}

func (s *source) run() {
	defer s.cancel()
	unwatch := s.c.NATS.Watch(s.connection)
	s.repeat(s.ctx, s.read)
	s.mu.Lock()
	remove := s.remove && s.key.Stream != ""
	s.failure = "the consumer of an earlier trigger with this stream and subject is being deleted"
	s.mu.Unlock()
	if remove {
		s.repeat(s.Subjects.ctx, s.delete)
	}
	unwatch()
	s.mu.Lock()
	delete(s.sources, s.key)
	s.share.Leave(s.worker.Namespace)
	changed := s.changed
	s.mu.Unlock()
	changed(s.worker) // its trigger may be back
}

// repeat calls do until it succeeds or ctx is done.
func (s *source) repeat(ctx context.Context, do func(context.Context) error) {
	for ctx.Err() == nil {
		err := do(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, context.Canceled) { // otherwise connection has reported why
			s.report(err)
		}
		select {
		case <-ctx.Done():
		case <-s.back:
		case <-time.After(retryAfter):
		}
	}
}

// connection is called when the connection is lost, with an error, and when it is back.
func (s *source) connection(err error) {
	s.mu.Lock()
	broken, subscribed := s.broken, s.subscribed
	s.mu.Unlock()
	switch {
	case err != nil:
		s.report(errLost)
	case subscribed:
		s.report(nil)
	default:
		select {
		case s.back <- struct{}{}:
		default:
		}
	}
	broken()
}

// report has the state of the source shown in the worker's status, and a new failure in an event.
func (s *source) report(err error) {
	text := ""
	if err != nil {
		text = bounded.Text(err.Error(), maxFailure)
	}
	s.mu.Lock()
	same := s.failure == text || s.ctx.Err() != nil
	if !same {
		s.failure = text
	}
	changed := s.changed
	s.mu.Unlock()
	if same {
		return
	}
	changed(s.worker)
	if err != nil {
		s.event(corev1.EventTypeWarning, "TriggerFailed", "No message of NATS subject %s is queued: %s", s.key.Subject, text)
	}
}

// event records an event about the worker.
func (s *source) event(kind, reason, format string, args ...any) {
	s.c.Events.About(corev1.ObjectReference{
		Namespace: s.worker.Namespace, Name: s.worker.Name, UID: s.key.uid, Kind: "Worker",
		APIVersion: workers.GroupVersion.String(),
	}, kind, reason, format, args...)
}

func (s *source) read(ctx context.Context) error {
	session, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.broken = cancel
	s.mu.Unlock()
	conn, js, err := s.connect(s.worker.Namespace, s.key.Subject)
	switch {
	case err != nil:
		return err
	case s.key.Stream != "":
		return s.consume(session, conn, js)
	}
	return s.subscribe(ctx, conn)
}

// subscribe reads messages that no stream has. The queue group gives each to one server, if two believe to keep the
// worker's queue. At the end, those that have arrived are queued.
func (s *source) subscribe(ctx context.Context, conn *nats.Conn) error {
	sub, err := conn.QueueSubscribeSync(s.key.Subject, "coracle-"+string(s.key.uid))
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := errors.Join(sub.SetPendingLimits(maxUnread, maxUnreadBytes), conn.FlushTimeout(timeout)); err != nil {
		return err
	}
	s.report(nil)
	s.setSubscribed(true)
	defer s.setSubscribed(false)
	defer context.AfterFunc(ctx, func() {
		if !conn.IsConnected() || sub.Drain() != nil {
			_ = sub.Unsubscribe()
		}
	})()
	for {
		m, err := sub.NextMsgWithContext(context.Background())
		var list []item
		for n := 0; err == nil; m, err = sub.NextMsgWithContext(context.Background()) {
			if list = append(list, s.core(conn, m)); len(list) == 1 {
				n, _, _ = sub.Pending()
			}
			if len(list) > min(n, maxBatch) {
				break
			}
		}
		s.deliver(ctx, list)
		switch {
		case errors.Is(err, nats.ErrSlowConsumer):
			s.event(corev1.EventTypeWarning, "MessagesDropped", "Messages of NATS subject %s come faster than the queue takes "+
				"them: some are lost", s.key.Subject)
		case err != nil:
			return err
		}
	}
}

func (s *source) setSubscribed(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribed = is
}

// consume reads the messages of a stream, as many at once as fit into maxUnreadBytes. Messages that the queue does not
// take stay in the stream.
func (s *source) consume(ctx context.Context, conn *nats.Conn, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, s.key.Stream)
	var c jetstream.Consumer
	if err == nil {
		c, err = stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: s.consumer(), FilterSubject: s.key.Subject, AckPolicy: jetstream.AckExplicitPolicy,
			MaxAckPending: maxBatch, AckWait: s.ackWait, InactiveThreshold: abandoned,
			Description: "trigger of worker " + s.worker.String(),
		})
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.key.Stream, err)
	}
	s.report(nil)
	batch := int(min(max(maxUnreadBytes/max(conn.MaxPayload(), 1), 1), maxBatch))
	prefix := fmt.Sprintf("nats %s %d ", s.key.Stream, stream.CachedInfo().Created.UnixNano())
	for {
		got, err := c.Fetch(batch, jetstream.FetchContext(ctx))
		if err != nil {
			return err
		}
		for m := range got.Messages() {
			list := []item{s.stored(prefix, m)}
			for len(got.Messages()) > 0 {
				list = append(list, s.stored(prefix, <-got.Messages()))
			}
			s.deliver(ctx, list)
		}
		if err := got.Error(); err != nil {
			return err
		}
	}
}

// consumer returns the name of the durable consumer.
func (s *source) consumer() string {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(s.key.Subject))
	return fmt.Sprintf("coracle-%s-%x", s.key.uid, hash.Sum64())
}

func (s *source) delete(ctx context.Context) error {
	_, js, err := s.c.NATS.Connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = js.DeleteConsumer(ctx, s.key.Stream, s.consumer())
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}
