package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// servers is a NATS server in this process.
type servers struct {
	t    testing.TB
	dir  string
	port int
	*server.Server
	context string
	id      string // of the stream
	used    int
}

// fresh has later homes use another stream. nats-server 2.15 may bring messages back if a stream is deleted and made
// again while it still removes the files of an earlier deletion.
func (s *servers) fresh() {
	s.used++
	s.id = fmt.Sprint("uid", s.used)
}

// startNATS runs a NATS server until the end of the test.
func startNATS(t testing.TB, change func(*server.Options)) *servers {
	s := &servers{t: t, dir: t.TempDir(), port: server.RANDOM_PORT, id: "uid"}
	s.start(change)
	require.True(t, s.ReadyForConnections(time.Minute))
	t.Cleanup(s.stop)
	s.context = filepath.Join(t.TempDir(), "context.json")
	s.save(map[string]any{"url": s.ClientURL(), "description": "for tests", "nsc": ""})
	return s
}

func (s *servers) start(change func(*server.Options)) {
	o := &server.Options{Host: "127.0.0.1", Port: s.port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: s.dir}
	if change != nil {
		change(o)
	}
	n, err := server.NewServer(o)
	require.NoError(s.t, err)
	n.Start()
	require.Eventually(s.t, func() bool { return n.Addr() != nil }, time.Minute, time.Millisecond)
	s.Server, s.port = n, n.Addr().(*net.TCPAddr).Port
}

func (s *servers) stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

func (s *servers) save(context map[string]any) {
	text, err := json.Marshal(context)
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(s.context, text, 0o600))
}

// home is a process that keeps the queue k in a stream.
type home struct {
	*Local
	nats    *NATS
	changed chan Key
}

func (s *servers) home(change func(*Config)) *home {
	h := &home{nats: &NATS{Context: s.context, Name: "test"}, changed: make(chan Key, 100)}
	c := Config{
		Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil)), NATS: h.nats,
		Changed: func(k Key) {
			select {
			case h.changed <- k:
			default:
			}
		},
	}
	if change != nil {
		change(&c)
	}
	l, err := Open(c)
	require.NoError(s.t, err)
	h.Local = l
	l.Place(k, s.id)
	return h
}

func (h *home) close() error {
	defer h.nats.Close()
	return h.Close()
}

// until waits until the queue has a failure with the text or, if it is empty, has been read and has none.
func (h *home) until(t testing.TB, text string) {
	late := time.After(time.Minute)
	for {
		failure := h.Depth(k).Failure
		h.mu.Lock()
		loaded := h.streams[k].loaded
		h.mu.Unlock()
		if text == "" && failure == nil && loaded || text != "" && failure != nil {
			if text != "" {
				require.ErrorContains(t, failure, text)
			}
			return
		}
		select {
		case <-h.changed:
		case <-late:
			t.Fatalf("expected %q, have %v", text, failure)
		}
	}
}

func (s *servers) jetstream() jetstream.JetStream {
	c, err := nats.Connect(s.ClientURL(), nats.UserInfo("user", "secret"))
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	js, err := jetstream.New(c)
	require.NoError(s.t, err)
	return js
}

func ids(q Queues) (list []string) {
	for _, m := range q.List(k, "", 0, 10_000) {
		list = append(list, m.ID)
	}
	return list
}

// TestHomeIsReplaced checks that another process takes a queue over with all accepted messages, their payloads,
// attempts and states, and that the former home then accepts nothing.
func TestHomeIsReplaced(t *testing.T) {
	s := startNATS(t, nil)
	a := s.home(nil)
	defer func() { require.NoError(t, a.close()) }()
	add(t, a, message("1", true), message("2", true), message("3", true), message("4", true))
	claim(t, a, "1", "p")
	a.Return(k, "1", Result{Dead: true, Error: "bad"})
	claim(t, a, "2", "p")
	a.Acknowledge(k, "2")
	claim(t, a, "3", "p")
	add(t, a, message("5", true)) // with the changes before it
	b := s.home(nil)
	defer func() { require.NoError(t, b.close()) }()
	add(t, b, message("6", true))
	require.Equal(t, []string{"1", "3", "4", "5", "6"}, ids(b))
	dead, _ := b.Find(k, "1")
	require.Equal(t, Dead, dead.State)
	require.Equal(t, "bad", dead.Error)
	require.EqualValues(t, 2, claim(t, b, "3", "p").Attempts)
	require.ErrorIs(t, a.Append(k, many, []Message{message("7", true)})()[0], ErrUnavailable)
	a.Acknowledge(k, "3")
	require.Eventually(t, func() bool { return len(ids(a)) == 0 }, 10*time.Second, time.Millisecond, "not its own")
	for _, id := range []string{"4", "5", "6"} {
		claim(t, b, id, "p")
		b.Acknowledge(k, id)
	}
	b.Acknowledge(k, "3")
	b.Purge(k, false, func(string) {})
	require.Equal(t, usage{}, b.all)
}

// TestServersReturn checks that senders get an error while the NATS servers are down, and that all accepted messages
// are there and new ones accepted when they are back.
func TestServersReturn(t *testing.T) {
	s := startNATS(t, nil)
	h := s.home(nil)
	defer func() { require.NoError(t, h.close()) }()
	add(t, h, message("1", true), message("2", true))
	claim(t, h, "1", "p")
	s.stop()
	h.until(t, "NATS")
	err := h.Append(k, many, []Message{message("3", true)})()[0]
	require.ErrorIs(t, err, ErrUnavailable)
	require.NotContains(t, err.Error(), "buffer", "the library's error of an interrupted connection")
	add(t, h, message("4", false))
	h.Acknowledge(k, "1")
	claim(t, h, "2", "p")
	h.Return(k, "2", Result{Error: "no"})
	s.start(nil)
	require.True(t, s.ReadyForConnections(time.Minute))
	h.until(t, "")
	add(t, h, message("3", true))
	next := s.home(nil)
	defer func() { require.NoError(t, next.close()) }()
	next.until(t, "")
	add(t, next, message("5", true))
	require.Equal(t, []string{"2", "3", "5"}, ids(next))
	require.Equal(t, "no", claim(t, next, "2", "p").Error)
}

// TestStreamIsDeleted checks that a queue writes its messages again after others have deleted its stream, and that it
// accepts messages after others have written to it.
func TestStreamIsDeleted(t *testing.T) {
	for name, harm := range map[string]func(*testing.T, jetstream.JetStream){
		"deleted": func(t *testing.T, js jetstream.JetStream) {
			require.NoError(t, js.DeleteStream(context.Background(), "coracle-uid"))
		},
		"written": func(t *testing.T, js jetstream.JetStream) {
			for _, subject := range []string{"coracle.uid.m.x", "coracle.uid.other", "coracle.uid.m.99"} {
				_, err := js.Publish(context.Background(), subject, []byte("foreign"))
				require.NoError(t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startNATS(t, nil)
			h := s.home(nil)
			add(t, h, message("1", true), message("2", true))
			harm(t, s.jetstream())
			for i, err := 0, error(ErrUnavailable); err != nil; i++ {
				require.Less(t, i, 100)
				err = h.Append(k, many, []Message{message("3", true)})()[0]
			}
			require.NoError(t, h.close())
			next := s.home(nil)
			defer func() { require.NoError(t, next.close()) }()
			add(t, next, message("4", true))
			require.Equal(t, []string{"1", "2", "3", "4"}, ids(next))
		})
	}
}

// TestBadContexts checks that what is wrong is in the error for senders.
func TestBadContexts(t *testing.T) {
	s := startNATS(t, func(o *server.Options) { o.Username, o.Password = "user", "secret" })
	url := s.ClientURL()
	for _, bad := range []struct {
		context map[string]any
		text    string
	}{
		{map[string]any{"url": "nats://127.0.0.1:1"}, "no connection to the NATS servers"},
		{map[string]any{"url": url}, "Authorization Violation"},
		{map[string]any{"url": url, "user": "user", "password": "wrong"}, "Authorization Violation"},
		{map[string]any{"url": url, "creds": "/missing"}, "/missing"},
		{map[string]any{"url": url, "nsc": "operator"}, "the field nsc is not supported"},
		{map[string]any{"url": 5}, "is not the JSON of a NATS context"},
	} {
		s.save(bad.context)
		s.fresh()
		h := s.home(nil)
		err := h.Append(k, many, []Message{message("1", true)})()[0]
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, bad.text)
		require.ErrorContains(t, h.Depth(k).Failure, bad.text)
		s.save(map[string]any{"url": url, "user": "user", "password": "secret"})
		h.until(t, "")
		add(t, h, message(fmt.Sprint(bad.text, bad.context), true))
		h.Discard(k)
		require.NoError(t, h.close())
		require.Empty(t, s.streams())
	}
}

func (s *servers) streams() (list []string) {
	for name := range s.jetstream().StreamNames(context.Background()).Name() {
		list = append(list, name)
	}
	return list
}
