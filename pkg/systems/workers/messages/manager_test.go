package messages

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

type api struct {
	mu   sync.Mutex
	got  []*http.Request
	body []string
	code int
	came chan struct{}
	// first are the answers before code, each a status or an error.
	first []any
}

func (a *api) Do(req *http.Request, token string) (*http.Response, error) {
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	a.got, a.body = append(a.got, req), append(a.body, string(text))
	a.came <- struct{}{}
	code := a.code
	if len(a.first) > 0 {
		now := a.first[0]
		a.first = a.first[1:]
		if err, failed := now.(error); failed {
			return nil, err
		}
		code = now.(int)
	}
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{workers.HeaderPod: {"other"}},
		Body:       io.NopCloser(strings.NewReader("reply")),
	}, nil
}

// bench is a Manager with one pod. The test acts as the pod's program.
type bench struct {
	*Manager
	t       *testing.T
	api     *api
	dir     string
	pod     *corev1.Pod
	base    string
	events  chan string
	metrics *prometheus.Registry
}

func newBench(t *testing.T, dir string, q workers.Queue) *bench {
	b := &bench{
		t:       t,
		dir:     dir,
		api:     &api{code: http.StatusAccepted, came: make(chan struct{}, 100)},
		events:  make(chan string, 100),
		metrics: prometheus.NewRegistry(),
	}
	b.Manager = New(Config{
		Dir: dir, API: b.api, Token: func(context.Context, *corev1.Pod) (string, error) { return "token", nil },
		Changed: func(types.UID) {},
		Event:   func(_ *corev1.Pod, _, reason, message string) { b.events <- reason + ": " + message },
		Logger:  slog.New(slog.DiscardHandler), Metrics: b.metrics,
	})
	b.listen = func(context.Context, string) (net.Listener, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			b.base = "http://" + l.Addr().String()
		}
		return l, err
	}
	require.NoError(t, b.Start())
	t.Cleanup(b.Stop)
	b.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "ns",
			Name:        "p",
			UID:         "uid",
			Annotations: map[string]string{workers.AnnotationQueue: q.Annotation()},
		},
	}
	return b
}

func (b *bench) setup() *bench {
	require.NoError(b.t, b.Setup(b.t.Context(), b.pod, "127.0.0.1"))
	b.Observe("uid", "c1", true)
	return b
}

func (b *bench) message(id, text string) Message {
	p, err := b.bytes.read(strings.NewReader(text), int64(len(text)))
	require.NoError(b.t, err)
	return Message{ID: id, ContentType: "text/plain", Receipt: "receipt " + id, payload: p}
}

func (b *bench) deliver(id, text string, wait bool) Outcome {
	return b.Deliver(b.t.Context(), Target{"ns", "p", "uid"}, b.message(id, text), wait)
}

var program = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (b *bench) next() (id, text string) {
	res, err := program.Get(b.base + runtimePath + "invocation/next")
	require.NoError(b.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	require.Equal(b.t, http.StatusOK, res.StatusCode, "%s", body)
	require.NotEmpty(b.t, res.Header.Get("Lambda-Runtime-Deadline-Ms"))
	return res.Header.Get("Lambda-Runtime-Aws-Request-Id"), string(body)
}

func (b *bench) post(path, text string) (int, string) {
	res, err := program.Post(b.base+path, "text/plain", strings.NewReader(text))
	require.NoError(b.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	return res.StatusCode, string(body)
}

func (b *bench) reply(id, text string) int {
	code, _ := b.post(runtimePath+"invocation/"+id+"/response", text)
	return code
}

func TestRequestAndReply(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"}).setup()
	got := make(chan Outcome)
	go func() { got <- b.deliver("1", "hello", true) }()
	id, text := b.next()
	require.Equal(t, "1", id)
	require.Equal(t, "hello", text)
	require.Equal(t, http.StatusAccepted, b.reply(id, "world"))
	o := <-got
	require.Empty(t, o.Failure)
	require.Equal(t, "world", string(o.body.data))
	o.body.release()
	require.Equal(t, http.StatusNotFound, b.reply(id, "again"), "an answered request is not known any longer")
	require.Equal(t, http.StatusNotFound, b.reply("forged", "x"))

	go func() { got <- b.deliver("2", "x", true) }()
	id, _ = b.next()
	code, _ := b.post(runtimePath+"invocation/"+id+"/error", `{"errorType": "Bad", "errorMessage": "no\nsuch thing"}`)
	require.Equal(t, http.StatusAccepted, code)
	o = <-got
	require.Equal(t, Outcome{Failure: workers.HandlerFailed, ErrorType: "Bad", Text: "no such thing", Attempts: 1}, o)

	go func() { got <- b.deliver("3", "x", true) }()
	id, _ = b.next()
	code, _ = b.post(runtimePath+"invocation/"+id+"/response", strings.Repeat("x", workers.MaxPayload+1))
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	require.Equal(t, "TooLarge", (<-got).ErrorType)

	go func() { got <- b.deliver("4", "x", true) }()
	b.next()
	b.Observe("uid", "c1", false)
	require.Equal(t, workers.ReceiverLost, (<-got).Failure, "the container ended while it had the message")

	code, _ = b.post(runtimePath+"init/error", `{"errorMessage": "no configuration"}`)
	require.Equal(t, http.StatusAccepted, code)
	require.Contains(t, <-b.events, "no configuration")
	require.Zero(t, b.bytes.used, "all memory was given back")

	require.Equal(t, workers.NoReceiver,
		b.Deliver(t.Context(), Target{"other", "p", "uid"}, b.message("5", "x"), true).Failure)
	families, err := b.metrics.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
}

// TestRejectedReply checks that a rejected reply is read to its end, so that the program sees the status and can
// reuse the connection. With "Expect: 100-continue" nothing is read.
func TestRejectedReply(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"}).setup()
	send := func(expect string, size int, body io.Reader) (int, bool) {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "POST %sinvocation/1/response HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n",
			runtimePath, size, expect)
		require.NoError(t, err)
		_, err = io.Copy(c, body)
		require.NoError(t, err)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		defer res.Body.Close()
		return res.StatusCode, res.Close
	}
	const large = 2 * workers.MaxPayload
	code, closed := send("", large, io.LimitReader(zeros{}, large))
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	require.False(t, closed)
	code, _ = send("Expect: 100-continue\r\n", large, strings.NewReader(""))
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	require.True(t, b.bytes.take(nodeBytes))
	defer b.bytes.give(nodeBytes, false)
	code, closed = send("", workers.MaxPayload, io.LimitReader(zeros{}, workers.MaxPayload))
	require.Equal(t, http.StatusTooManyRequests, code)
	require.False(t, closed)
}

func TestSendersDeadline(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"}).setup()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan Outcome)
	go func() { got <- b.Deliver(ctx, Target{"ns", "p", "uid"}, b.message("1", "x"), true) }()
	id, _ := b.next()
	cancel()
	require.Equal(t, workers.HandlerTimeout, (<-got).Failure)
	require.Equal(t, http.StatusAccepted, b.reply(id, "too late"))
	require.Empty(t, b.deliver("2", "y", false).Failure)
	id, text := b.next()
	require.Equal(t, "y", text, "an abandoned message does not come again")
	require.Equal(t, http.StatusAccepted, b.reply(id, ""))
}

func TestSendFromAPod(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"}).setup()
	b.api.code = http.StatusOK
	code, body := b.post("/v1/services/other/message", "hi")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "reply", body)
	require.Equal(t, "/api/v1/namespaces/ns/services/other/message", b.api.got[0].URL.Path)
	require.Equal(t, "Bearer token", b.api.got[0].Header.Get("Authorization"), "with the permissions of the pod's account")
	code, _ = b.post("/v1/nodes/other/message", "hi")
	require.Equal(t, http.StatusNotFound, code)
	for _, path := range []string{
		"/v1/services/a%2Fproxy%2Fadmin/message", "/v1/namespaces/ns%2Fservices%2Fa%2Fproxy/pods/x/message",
		"/v1/namespaces/ns/services/%2E%2E/message", "/v1/pods/a%252F/message",
	} {
		code, body = b.post(path, "hi")
		require.Equal(t, http.StatusBadRequest, code, path)
		require.Contains(t, body, "is not a name", path)
	}
	require.Len(t, b.api.got, 1, "nothing else was sent to the API server")
}

// TestAtLeastOnce checks that accepted messages survive the agent, that a message that exhausts its attempts goes
// to the dead-letter worker, and that another pod gets the messages of a deleted pod.
func TestAtLeastOnce(t *testing.T) {
	dir, q := t.TempDir(), workers.Queue{Worker: "w", Promise: workers.AtLeastOnce, MaxAttempts: 2, DeadLetter: "dead"}
	first := newBench(t, dir, q).setup()
	for i := range 3 {
		require.Empty(t, first.deliver(fmt.Sprint(i), fmt.Sprint("text ", i), false).Failure)
	}
	id, _ := first.next()
	require.Equal(t, http.StatusAccepted, first.reply(id, ""))
	id, _ = first.next() // attempt 1, never answered
	require.Equal(t, "1", id)
	first.Stop()

	second := newBench(t, dir, q).setup()
	id, _ = second.next()
	require.Equal(t, "1", id, "in its place")
	second.Observe("uid", "c1", false) // attempt 2 fails, which is the maximum
	<-second.api.came
	require.Equal(t, "/api/v1/namespaces/ns/services/dead/message", second.api.got[0].URL.Path)
	require.Equal(t, "text 1", second.api.body[0])
	require.Contains(t, second.api.got[0].Header.Get(workers.HeaderDeadLetter), "ReceiverLost")
	require.Contains(t, <-second.events, "MessageDeadLettered")

	second.Close("uid")
	<-second.api.came
	require.Equal(t, "/api/v1/namespaces/ns/services/w/message", second.api.got[1].URL.Path)
	require.Equal(t, "text 2", second.api.body[1])
	second.Stop()

	third := newBench(t, dir, q)
	require.Empty(t, third.orphans, "nothing is left")
}

// TestMessagesOfAPodThatIsGone checks that the agent sends them to the worker's other pods when it starts.
func TestMessagesOfAPodThatIsGone(t *testing.T) {
	dir := t.TempDir()
	first := newBench(t, dir, workers.Queue{Worker: "w", Promise: workers.AtLeastOnce}).setup()
	require.Empty(t, first.deliver("1", "x", false).Failure)
	first.Stop()
	second := newBench(t, dir, workers.Queue{})
	second.Synced(func(types.UID) bool { return false })
	<-second.api.came
	require.Equal(t, "receipt 1", second.api.got[0].Header.Get(workers.HeaderReceipt))
	require.Equal(t, "/api/v1/namespaces/ns/services/w/message", second.api.got[0].URL.Path)
}

// TestAtMostOnceIsNotSentTwice checks that messages in a deleted pod's queue go to another pod of the worker. If it
// is unknown whether that pod has accepted one, for example when a server is killed, it is sent again only with
// AtLeastOnce.
func TestAtMostOnceIsNotSentTwice(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for name, c := range map[string]struct {
		answer  any
		promise workers.Promise
		sent    int
	}{
		"accepted":              {http.StatusAccepted, workers.AtMostOnce, 1},
		"no server":             {fmt.Errorf("send: %w", refused), workers.AtMostOnce, 2},
		"full":                  {http.StatusTooManyRequests, workers.AtMostOnce, 2},
		"no receiver":           {http.StatusServiceUnavailable, workers.AtMostOnce, 2},
		"no such worker":        {http.StatusNotFound, workers.AtMostOnce, 1},
		"broken":                {io.ErrUnexpectedEOF, workers.AtMostOnce, 1},
		"reset":                 {&net.OpError{Op: "read", Err: errors.New("connection reset")}, workers.AtMostOnce, 1},
		"lost":                  {http.StatusBadGateway, workers.AtMostOnce, 1},
		"late":                  {http.StatusGatewayTimeout, workers.AtMostOnce, 1},
		"broken, at least once": {io.ErrUnexpectedEOF, workers.AtLeastOnce, 2},
		"lost, at least once":   {http.StatusBadGateway, workers.AtLeastOnce, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir(), workers.Queue{Worker: "w", Promise: c.promise}).setup()
			b.api.first = []any{c.answer}
			require.Empty(t, b.deliver("1", "x", false).Failure)
			b.Close("uid")
			for range c.sent {
				<-b.api.came
			}
			if c.sent == 1 && c.answer != http.StatusAccepted {
				require.Contains(t, <-b.events, "MessageLost", "it is not lost without a word")
			}
			b.Stop()
			require.Len(t, b.api.got, c.sent)
		})
	}
}

func TestPush(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	requests := make(chan *http.Request, 10)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- r
		if r.Header.Get("Ce-Id") == "bad" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write(bytes.ToUpper(body))
	})}
	done := make(chan error)
	port := l.Addr().(*net.TCPAddr).Port
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w", Mode: workers.ModePush, Port: int32(port), Path: "/in"})
	require.NoError(t, l.Close()) // the program does not listen yet
	b.setup()
	got := make(chan Outcome)
	go func() { got <- b.deliver("1", "hello", true) }()
	for l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err != nil; l, err = net.Listen("tcp",
		fmt.Sprint("127.0.0.1:", port)) {
	}
	go func() { done <- server.Serve(l) }()
	o := <-got
	require.Empty(t, o.Failure, o.Text)
	require.Equal(t, "HELLO", string(o.body.data))
	r := <-requests
	require.Equal(t, "/in", r.URL.Path)
	require.Equal(t, []string{"1.0", "1", EventType},
		[]string{r.Header.Get("Ce-Specversion"), r.Header.Get("Ce-Id"), r.Header.Get("Ce-Type")})
	o = b.deliver("bad", "x", true)
	require.Equal(t, workers.HandlerFailed, o.Failure)
	require.Equal(t, "HTTP418", o.ErrorType)
	require.NoError(t, server.Close())
	require.True(t, errors.Is(<-done, http.ErrServerClosed))
}

func TestMemoryIsBounded(t *testing.T) {
	node := &budget{limit: 3 << 20}
	pod := &budget{limit: 2 << 20, parent: node}
	_, err := pod.read(strings.NewReader("x"), workers.MaxPayload+1)
	require.ErrorContains(t, err, "larger than the limit")
	require.Zero(t, node.used, "refused before memory is taken")
	p, err := pod.read(io.LimitReader(zeros{}, workers.MaxPayload), -1)
	require.NoError(t, err)
	require.Len(t, p.data, workers.MaxPayload)
	_, err = pod.read(io.LimitReader(zeros{}, workers.MaxPayload), workers.MaxPayload)
	require.ErrorIs(t, err, errNoMemory)
	_, err = pod.read(zeros{}, -1)
	require.Error(t, err)
	p.release()
	_, err = pod.read(io.LimitReader(zeros{}, workers.MaxPayload+1), -1)
	require.ErrorContains(t, err, "larger than the limit")
	_, err = pod.read(strings.NewReader("abc"), 5)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Zero(t, node.used)
	require.Zero(t, pod.used)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestReportsAreRare(t *testing.T) {
	changed := make(chan struct{}, 1000)
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"})
	b.c.Changed = func(types.UID) { changed <- struct{}{} }
	b.setup()
	began := time.Now()
	for i := range 100 {
		require.Empty(t, b.deliver(fmt.Sprint(i), "x", false).Failure)
	}
	<-changed
	require.NotNil(t, b.Condition("uid"))
	require.Nil(t, b.Condition("other"))
	most := 2 + int(time.Since(began)/reportEvery)
	require.LessOrEqual(t, len(changed), most)
}
