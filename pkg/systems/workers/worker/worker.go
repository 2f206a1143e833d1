// Package worker is for programs that handle messages in a Worker's pods:
//
//	func main() {
//		worker.Main(func(ctx context.Context, m *worker.Message) ([]byte, error) {
//			return bytes.ToUpper(m.Payload), nil
//		})
//	}
//
// Messages come from the node's agent on one connection (package frame) or, from agents without it, over HTTP as in
// AWS Lambda's Runtime API. A handler may send messages with the permissions of the pod's service account.
//
// It imports only the standard library. Its invariant: each message that Serve gets is answered, with the handler's
// reply or its error, also if the handler panics.
package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

// MaxPayload bounds messages and replies, in bytes.
const MaxPayload = 1 << 20

// Message is a message to handle.
type Message struct {
	// ID is unique. A message that is delivered again keeps it unless it moves to another node.
	ID string
	// Payload is at most MaxPayload bytes, or a batch of at most frame.MaxMessage if the Worker has spec.batch.
	Payload     []byte
	ContentType string
	// Attempt counts from 1 how often a program got the message.
	Attempt int
	// DeadLetter is the reason why another worker failed to handle the message. It is only set in a dead-letter worker.
	DeadLetter string
	// Trace is the sender's traceparent (W3C Trace Context), or empty. The context passes it on to Send and Call.
	Trace string
	// Deadline is when the sender stops waiting for the reply. It is also the context's deadline.
	Deadline time.Time

	parts *parts // set by the loop that got the message
}

// Handler handles a message. The sender gets the reply if it waits for one. After an error, an at-least-once message
// is delivered again.
type Handler func(ctx context.Context, m *Message) (reply []byte, err error)

// JSON returns a handler for messages and replies in JSON.
func JSON[In, Out any](f func(context.Context, In) (Out, error)) Handler {
	return func(ctx context.Context, m *Message) ([]byte, error) {
		var in In
		if err := json.Unmarshal(m.Payload, &in); err != nil {
			return nil, fmt.Errorf("the message is not the expected JSON: %w", err)
		}
		out, err := f(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// Main handles messages until SIGTERM or SIGINT. It exits with 1 on an error.
func Main(h Handler) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := Serve(ctx, h); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

// Serve handles messages until ctx is done or the pod terminates; then it returns nil. The Worker's concurrency bounds
// the messages that it handles at once.
func Serve(ctx context.Context, h Handler) error {
	api := os.Getenv("AWS_LAMBDA_RUNTIME_API")
	if api == "" {
		return errors.New("AWS_LAMBDA_RUNTIME_API is not set: this program runs in the pods of a Worker with mode Poll")
	}
	n, err := strconv.Atoi(os.Getenv("WORKER_CONCURRENCY"))
	if err != nil || n < 1 {
		n = 1
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if api == os.Getenv("CORACLE_MESSAGES_API") {
		if err := newStream(h, n, api).serve(ctx, api); !errors.Is(err, errNoFrames) {
			return err
		}
	}
	l := &loop{base: "http://" + api + runtimePath, handler: h, client: newClient(n)}
	defer l.client.CloseIdleConnections()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := l.run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func newClient(n int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConnsPerHost: n + 4, IdleConnTimeout: 4 * time.Minute, DisableCompression: true,
	}}
}

type loop struct {
	base    string
	handler Handler
	client  *http.Client
}

// runtimePath is the path of the Runtime API.
const runtimePath = "/2018-06-01/runtime/"

// The pauses while the node's agent does not answer, for example while it restarts.
const (
	firstPause = 10 * time.Millisecond
	mostPause  = 2 * time.Second
)

func (l *loop) run(ctx context.Context) error {
	again := backoff.Backoff{First: firstPause, Most: mostPause}
	for ctx.Err() == nil {
		m, err := l.next(ctx)
		switch {
		case errors.Is(err, errTerminating):
			return nil
		case ctx.Err() != nil:
			return nil
		case err != nil:
			again.Wait(ctx)
			continue
		}
		again.Reset()
		m.parts = &parts{client: l.client, url: l.base + "invocation/" + m.ID + "/response"}
		l.handle(ctx, m)
	}
	return nil
}

var errTerminating = errors.New("the pod terminates")

func (l *loop) next(ctx context.Context) (*Message, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base+"invocation/next", nil)
	if err != nil {
		return nil, err
	}
	res, err := l.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, frame.MaxMessage+1))
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode == http.StatusGone:
		return nil, errTerminating
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %.256s", res.Status, body)
	}
	m := &Message{
		ID: res.Header.Get("Lambda-Runtime-Aws-Request-Id"), Payload: body, ContentType: res.Header.Get("Content-Type"),
		DeadLetter: res.Header.Get("Coracle-Dead-Letter"), Trace: res.Header.Get("Traceparent"),
	}
	m.Attempt, _ = strconv.Atoi(res.Header.Get("Coracle-Message-Attempt"))
	if ms, err := strconv.ParseInt(res.Header.Get("Lambda-Runtime-Deadline-Ms"), 10, 64); err == nil {
		m.Deadline = time.UnixMilli(ms)
	}
	return m, nil
}

func (h Handler) result(ctx context.Context, m *Message) answer {
	ctx = context.WithoutCancel(ctx) // a received message is always handled
	if !m.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, m.Deadline)
		defer cancel()
	}
	reply, err := h.call(context.WithValue(ctx, traceKey{}, m.Trace), m)
	if m.parts.begun() {
		m.parts.end(reply, err)
		return answer{Head: frame.Head{Kind: frame.Sent, ID: m.ID}}
	}
	if err == nil && len(reply) > MaxPayload {
		err = fmt.Errorf("the reply has %d bytes, more than %d", len(reply), MaxPayload)
	}
	a := answer{Head: frame.Head{Kind: frame.Reply, ID: m.ID, ContentType: "application/octet-stream"}, payload: reply}
	switch {
	case err != nil:
		text := err.Error()
		a = answer{
			Head:    frame.Head{Kind: frame.Failure, ID: m.ID, ErrorType: errorType(err)},
			payload: []byte(text[:min(len(text), MaxPayload)]),
		}
	case json.Valid(reply):
		a.ContentType = "application/json"
	}
	return a
}

// errorType returns the name of an error's type, unless it is a type of the standard library that says nothing.
func errorType(err error) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", err), "*")
	if strings.HasPrefix(name, "errors.") || strings.HasPrefix(name, "fmt.") {
		return ""
	}
	return name[:min(len(name), 256)]
}

func (l *loop) handle(ctx context.Context, m *Message) {
	a := l.handler.result(ctx, m)
	if a.Kind == frame.Sent {
		return
	}
	what, contentType, body := "response", a.ContentType, a.payload
	if a.Kind == frame.Failure {
		what, contentType = "error", "application/json"
		body, _ = json.Marshal(map[string]string{"errorType": a.ErrorType, "errorMessage": string(a.payload)})
	}
	answer, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	req, reqErr := http.NewRequestWithContext(answer, http.MethodPost, l.base+"invocation/"+m.ID+"/"+what,
		bytes.NewReader(body))
	if reqErr != nil {
		return
	}
	req.Header.Set("Content-Type", contentType)
	res, sendErr := l.client.Do(req)
	if sendErr != nil {
		fmt.Fprintln(os.Stderr, "worker: could not answer message", m.ID+":", sendErr)
		return
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
	if res.StatusCode != http.StatusAccepted {
		fmt.Fprintf(os.Stderr, "worker: the answer to message %s was refused: %s: %s\n", m.ID, res.Status, text)
	}
}

// call calls the handler. A panic becomes the error of this message.
func (h Handler) call(ctx context.Context, m *Message) (reply []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v", p)
		}
	}()
	return h(ctx, m)
}

// Parameters returns the parameters of the Worker.
func Parameters() map[string]string {
	p := map[string]string{}
	_ = json.Unmarshal([]byte(os.Getenv("WORKER_PARAMETERS")), &p)
	return p
}
