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

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

type api struct {
	mu   sync.Mutex
	got  []*http.Request
	code int
}

func (a *api) Do(req *http.Request, token string) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	a.got = append(a.got, req)
	return &http.Response{StatusCode: a.code, Body: io.NopCloser(strings.NewReader("reply"))}, nil
}

// bench is a Manager with one pod. The test acts as the pod's program.
type bench struct {
	*Manager
	t      *testing.T
	api    *api
	pod    *corev1.Pod
	base   string
	events chan string
}

func newBench(t *testing.T, q workers.Queue) *bench {
	b := &bench{t: t, api: &api{code: http.StatusAccepted}, events: make(chan string, 100)}
	b.Manager = New(Config{
		API: b.api, Token: func(context.Context, *corev1.Pod) (string, error) { return "token", nil },
		Event:  func(_ *corev1.Pod, _, reason, message string) { b.events <- reason + ": " + message },
		Logger: slog.New(slog.DiscardHandler),
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
	return Message{ID: id, ContentType: "text/plain", Attempt: 1, payload: p}
}

func (b *bench) deliver(id, text string) Outcome {
	return b.Deliver(b.t.Context(), Target{"ns", "p", "uid"}, b.message(id, text))
}

// direct hands messages over like a server in the same process, and returns the channel of their outcomes.
func (b *bench) direct(ids ...string) chan workers.Outcome {
	out := make(chan workers.Outcome, len(ids))
	list := make([]*workers.Delivery, len(ids))
	for i, id := range ids {
		list[i] = &workers.Delivery{
			ID: id, Payload: []byte("text " + id), Namespace: "ns", Pod: "p", UID: "uid", Attempt: 1,
			Done: func(o workers.Outcome) { out <- o },
		}
	}
	b.Accept(list)
	return out
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
	b := newBench(t, workers.Queue{Worker: "w"}).setup()
	got := make(chan Outcome)
	go func() { got <- b.deliver("1", "hello") }()
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

	go func() { got <- b.deliver("2", "x") }()
	id, _ = b.next()
	code, _ := b.post(runtimePath+"invocation/"+id+"/error", `{"errorType": "Bad", "errorMessage": "no\nsuch thing"}`)
	require.Equal(t, http.StatusAccepted, code)
	o = <-got
	require.Equal(t, Outcome{Failure: workers.HandlerFailed, ErrorType: "Bad", Text: "no such thing"}, o)

	tooLarge := strings.Repeat("x", workers.MaxPayload+1)
	for _, body := range []io.Reader{
		strings.NewReader(tooLarge),
		io.MultiReader(strings.NewReader(tooLarge)), // of a length that the client does not know
	} {
		go func() { got <- b.deliver("3", "x") }()
		id, _ = b.next()
		res, err := program.Post(b.base+runtimePath+"invocation/"+id+"/response", "text/plain", body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
		require.Equal(t, "TooLarge", (<-got).ErrorType)
	}

	go func() { got <- b.deliver("4", "x") }()
	b.next()
	b.Observe("uid", "c1", false)
	require.Equal(t, workers.ReceiverLost, (<-got).Failure, "the container ended while it had the message")

	code, _ = b.post(runtimePath+"init/error", `{"errorMessage": "no configuration"}`)
	require.Equal(t, http.StatusAccepted, code)
	require.Contains(t, <-b.events, "no configuration")
	require.Zero(t, b.bytes.used, "all memory was given back")

	require.Equal(t, workers.NoReceiver,
		b.Deliver(t.Context(), Target{"other", "p", "uid"}, b.message("5", "x")).Failure)
}

// TestRejectedReply checks that a rejected reply is read to its end, so that the program sees the status and can
// reuse the connection. With "Expect: 100-continue" nothing is read.
func TestRejectedReply(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w"}).setup()
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

// TestServerGoes checks that the message of a server that has gone is not handed over any more, and that the reply to
// a message that the program has is dropped.
func TestServerGoes(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w", Concurrency: 2}).setup()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan Outcome)
	for _, id := range []string{"1", "2"} {
		go func() { got <- b.Deliver(ctx, Target{"ns", "p", "uid"}, b.message(id, "x")) }()
	}
	id, _ := b.next()
	cancel()
	require.Equal(t, workers.ReceiverLost, (<-got).Failure)
	require.Equal(t, workers.ReceiverLost, (<-got).Failure)
	require.Equal(t, http.StatusAccepted, b.reply(id, "too late"))
	out := b.direct("3")
	id, text := b.next()
	require.Equal(t, "text 3", text, "an abandoned message does not come")
	require.Equal(t, http.StatusAccepted, b.reply(id, ""))
	o := <-out
	o.Free()
	require.Zero(t, b.bytes.used)
}

// TestDirect checks deliveries from the server in the same process: their order, bounds and ends.
func TestDirect(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w", Concurrency: 2}).setup()
	out := b.direct("1", "2", "3")
	require.Equal(t, workers.Outcome{
		Failure: workers.QueueFull, Text: "the pod's program has not taken earlier messages", Untouched: true,
	}, <-out)
	id, text := b.next()
	require.Equal(t, "text 1", text)
	require.Equal(t, http.StatusAccepted, b.reply(id, "world"))
	o := <-out
	require.Equal(t, "world", string(o.Payload))
	o.Free()
	b.Close("uid")
	require.Equal(t, workers.Outcome{Failure: workers.NoReceiver, Text: "the pod terminates", Untouched: true}, <-out)
	require.True(t, (<-b.direct("4")).Untouched)
	require.Zero(t, b.bytes.used, "all memory was given back")
	require.True(t, b.receiver("uid").bytes.take(podBytes))
	require.Equal(t, workers.QueueFull, (<-b.direct("5")).Failure)
	b.receiver("uid").bytes.give(podBytes, true)
	b.Release("uid")
	require.Equal(t, workers.NoReceiver, (<-b.direct("6")).Failure)
}

func TestSendFromAPod(t *testing.T) {
	b := newBench(t, workers.Queue{Worker: "w"}).setup()
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
	b := newBench(t, workers.Queue{Worker: "w", Mode: workers.ModePush, Port: int32(port), Path: "/in"})
	require.NoError(t, l.Close()) // the program does not listen yet
	b.setup()
	got := make(chan Outcome)
	go func() { got <- b.deliver("1", "hello") }()
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
	o = b.deliver("bad", "x")
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
