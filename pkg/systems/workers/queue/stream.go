package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stream is a store in a JetStream stream. A message is the last one on its subject, PREFIX.m.SEQ, with its record in a
// header; an empty one without a record, which expires, replaces it when it is gone. The subject PREFIX.home names the
// process that writes.
//
// A write fails once another process has written its name: of two servers that both believe to keep the queue only the
// later one can accept a message. Writes follow each other without waiting, since the answer to the last one is the
// answer to all.
type stream struct {
	n       *NATS
	key     Key
	name    string
	session string // identifies this use of the stream
	unwatch func()

	conn  *nats.Conn
	js    jetstream.JetStream
	last  uint64 // the stream's last sequence number
	home  uint64 // the sequence number of the message that names this process
	doubt bool   // last may be wrong
}

// Bounds. A server refuses larger messages and batches, and a stream with more is not of a queue.
const (
	headerRoom         = 16 << 10 // of a message, in bytes: records have less
	maxBatch           = 256
	maxBatchBytes      = 4 << 20
	maxStreamCount     = 250_000 // messages of which the replaced ones have not expired yet are counted
	maxStreamBytes     = maxBytes + maxDeadBytes + 16<<20
	maxID              = 64
	removedFor         = "1s" // how long a removed message's replacement is in the stream, at least
	notClustered       = 10074
	wishedReplicas     = 3
	headerRecord       = "Coracle-Record"
	headerLast         = "Nats-Expected-Last-Sequence"
	headerTTL          = "Nats-TTL"
	headerLastSubject  = "Nats-Expected-Last-Subject-Sequence"
	headerCheckSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	subjectMessages    = ".m."
	subjectHome        = ".home"
)

var (
	// errTaken means that another process keeps the queue now.
	errTaken = errors.New("another process keeps the queue now")
	// errEmptied means that the stream was deleted and made again: all messages must be written.
	errEmptied = errors.New("the stream was deleted by others and made again")
)

func newStream(n *NATS, k Key, id string) *stream {
	return &stream{n: n, key: k, name: "coracle-" + id, session: uuid.NewString()}
}

// String implements store.
func (s *stream) String() string { return "NATS stream " + s.name }

func (s *stream) prefix() string { return "coracle." + strings.TrimPrefix(s.name, "coracle-") }

// config returns the stream's configuration. Users may change what check does not look at.
func (s *stream) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: s.name, Subjects: []string{s.prefix() + ".>"}, Description: "queue of worker " + s.key.String(),
		MaxMsgsPerSubject: 1, AllowMsgTTL: true, Replicas: wishedReplicas,
	}
}

func check(have *jetstream.StreamConfig) error {
	drops := have.MaxAge != 0 || have.Retention != jetstream.LimitsPolicy ||
		have.Discard != jetstream.DiscardNew && (have.MaxMsgs > 0 || have.MaxBytes > 0)
	if have.MaxMsgsPerSubject != 1 || !have.AllowMsgTTL || drops {
		return errors.New("it has another configuration than a queue's stream, or its servers are older than 2.11")
	}
	return nil
}

// find returns the stream, which it makes if need be, and its state.
func (s *stream) find(ctx context.Context) (made bool, st jetstream.Stream, err error) {
	if s.conn, s.js, err = s.n.Connect(); err != nil {
		return false, nil, err
	}
	if st, err = s.js.Stream(ctx, s.name); errors.Is(err, jetstream.ErrStreamNotFound) {
		made = true
		c := s.config()
		st, err = s.js.CreateStream(ctx, c)
		var api *jetstream.APIError
		if errors.As(err, &api) && api.ErrorCode == notClustered {
			c.Replicas = 1
			st, err = s.js.CreateStream(ctx, c)
		}
	}
	if err != nil {
		return made, nil, err
	}
	return made, st, check(&st.CachedInfo().Config)
}

// open implements store. It makes this process the only one that can write.
func (s *stream) open(ctx context.Context) (list []*record, err error) {
	defer func() { err = disconnected(err) }()
	ctx, cancel := context.WithTimeout(ctx, 4*natsTimeout)
	defer cancel()
	_, st, err := s.find(ctx)
	if err == nil {
		err = s.occupy("")
	}
	if err != nil {
		return nil, err
	}
	return s.read(ctx, st)
}

// occupy names this process as the one that writes, if the sequence number of the last such message is as expected.
func (s *stream) occupy(expected string) error {
	m := nats.NewMsg(s.prefix() + subjectHome)
	m.Data = []byte(s.session)
	if expected != "" {
		m.Header.Set(headerLastSubject, expected)
	}
	last, err := s.request(m)
	if err == nil {
		s.home, s.last = last, last
	}
	s.doubt = err != nil
	return err
}

// read returns the messages up to the one of this process.
func (s *stream) read(ctx context.Context, st jetstream.Stream) (list []*record, err error) {
	c, err := st.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{InactiveThreshold: time.Minute})
	if err != nil {
		return nil, err
	}
	messages, err := c.Messages(jetstream.PullMaxBytes(maxBatchBytes))
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	ids, count, bytes := map[string]bool{}, 0, 0
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		if meta.Sequence.Stream >= s.last {
			return list, nil
		}
		count++
		bytes += len(m.Data())
		if count > maxStreamCount || bytes > maxStreamBytes {
			return nil, errors.New("it has more messages than a queue can have")
		}
		r := s.record(m.Subject(), m.Headers().Get(headerRecord), m.Data())
		if r == nil || r.Message.State != ended && ids[r.Message.ID] {
			continue
		}
		list = append(list, r)
		if r.Message.State != ended { // a dead letter may be back where an ended message has its ID
			ids[r.Message.ID] = true
		}
	}
}

// record returns the message of the queue that a message of the stream is, or nil for others.
func (s *stream) record(subject, header string, payload []byte) *record {
	text, ok := strings.CutPrefix(subject, s.prefix()+subjectMessages)
	seq, err := strconv.ParseUint(text, 10, 63)
	r := &record{}
	if !ok || err != nil || len(header) > headerRoom || json.Unmarshal([]byte(header), r) != nil {
		return nil
	}
	r.Key = s.key
	m := &r.Message
	if m.ID == "" || len(m.ID) > maxID || m.Attempts < 0 || m.State == ended && m.DedupID == "" {
		return nil
	}
	m.Seq, m.Payload, m.Size, m.Durable = seq, payload, len(payload), true
	return r
}

// commit implements store.
func (s *stream) commit(changes []change) (err error) {
	defer func() { err = disconnected(err) }()
	if s.doubt || len(changes) == 0 {
		if err := s.resume(); err != nil {
			return err
		}
	}
	for len(changes) > 0 {
		n, bytes := 0, 0
		for n < len(changes) && n < maxBatch && (n == 0 || bytes+len(changes[n].payload) <= maxBatchBytes) {
			bytes += len(changes[n].payload)
			n++
		}
		last, err := s.publish(changes[:n])
		if wrongSequence(err) { // others have written, or the stream has another leader
			if err = s.resume(); err == nil {
				last, err = s.publish(changes[:n])
			}
		}
		if err != nil {
			s.doubt = true
			return err
		}
		s.last, changes = last, changes[n:]
	}
	return nil
}

// resume finds out after an error whether this process may still write, and has the next write follow the last one.
func (s *stream) resume() error {
	ctx, cancel := context.WithTimeout(context.Background(), natsTimeout)
	defer cancel()
	s.doubt = true
	made, st, err := s.find(ctx)
	if err == nil && !made {
		if err = s.occupy(strconv.FormatUint(s.home, 10)); err == nil || !wrongSequence(err) {
			return err
		}
		home, readErr := st.GetLastMsgForSubject(ctx, s.prefix()+subjectHome)
		switch {
		case errors.Is(readErr, jetstream.ErrMsgNotFound):
			made, err = true, nil // others purged the stream
		case readErr != nil:
			return readErr
		case string(home.Data) != s.session:
			return errTaken
		default: // the answer to an earlier call was lost; a follower may have returned an old message
			s.home = home.Sequence
			return err
		}
	}
	if err == nil {
		err = s.occupy("0")
	}
	if err != nil {
		return err
	}
	return errEmptied
}

// wrongSequence reports whether a write was refused because others have written.
func wrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// publish writes changes and returns the stream's last sequence number then. Each names the one before it, and the last
// one the message that names this process, so the answer to the last one is the answer to all. Only the last one: in a
// cluster one message at a time may name a subject. Others may reach the stream after another process has taken it;
// they have sequence numbers that it does not use (epoch).
func (s *stream) publish(changes []change) (last uint64, err error) {
	for i := range changes {
		c := &changes[i]
		m := nats.NewMsg(s.prefix() + subjectMessages + strconv.FormatUint(c.Seq, 10))
		m.Header.Set(headerLast, strconv.FormatUint(s.last+uint64(i), 10))
		if c.value == nil {
			m.Header.Set(headerTTL, removedFor)
		} else {
			m.Header.Set(headerRecord, string(c.value))
			m.Data = c.payload
			if !c.until.IsZero() { // NATS removes it then
				m.Header.Set(headerTTL, fmt.Sprint(1+int(max(0, time.Until(c.until)).Seconds()), "s"))
			}
		}
		if i == len(changes)-1 {
			m.Header.Set(headerLastSubject, strconv.FormatUint(s.home, 10))
			m.Header.Set(headerCheckSubject, s.prefix()+subjectHome)
			return s.request(m)
		}
		if err := s.conn.PublishMsg(m); err != nil {
			return 0, err
		}
	}
	return s.last, nil
}

// request publishes a message and returns its sequence number.
func (s *stream) request(m *nats.Msg) (uint64, error) {
	reply, err := s.conn.RequestMsg(m, natsTimeout)
	if err != nil {
		return 0, err
	}
	var ack struct {
		Seq   uint64              `json:"seq"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return 0, fmt.Errorf("the answer to a write: %w", err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	return ack.Seq, nil
}

// disconnected returns nats.ErrDisconnected for the error of a connection that is interrupted and buffers nothing.
func disconnected(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return nats.ErrDisconnected
	}
	return err
}

// admit implements store.
func (s *stream) admit(m *Message) error {
	if most := s.n.limit.Load(); most > 0 && int64(len(m.Payload)) > most {
		return fmt.Errorf("%w %d bytes", ErrTooLarge, most)
	}
	return nil
}

func (s *stream) payload(uint64) []byte { return nil } // payloads are resident

// close implements store.
func (s *stream) close(discard bool) error {
	s.unwatch()
	if !discard {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), natsTimeout)
	defer cancel()
	_, js, err := s.n.Connect()
	if err == nil {
		err = js.DeleteStream(ctx, s.name)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, errNoContext) {
		return nil
	}
	return err
}
