package messages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/systems/workers/frame"
)

// The paths of the Runtime API (AWS Lambda, "Using the Lambda runtime API"), and the paths for sending.
const (
	runtimePath = "/2018-06-01/runtime/"
	sendPath    = "/v1/"

	// bodyTime bounds the time in which a program sends a reply.
	bodyTime = 30 * time.Second
	// mostDiscarded bounds the bytes of a rejected body that are read.
	mostDiscarded = 4 * workers.MaxPayload
	// maxErrorText bounds the text of an error that a program reports, in bytes; longer text is cut.
	maxErrorText = 4 << 10
)

// limited bounds the connections of a pod: one for each message in flight, and some for sending.
func (r *receiver) limited(l net.Listener) net.Listener {
	n := int(r.queue.config.Concurrency) + 32
	return connlimit.New(l, connlimit.Config{Most: 2 * n, Each: n, Logger: r.m.c.Logger})
}

func (r *receiver) newServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+runtimePath+"invocation/next", r.next)
	mux.HandleFunc("POST "+runtimePath+"invocation/{id}/response", r.response)
	mux.HandleFunc("POST "+runtimePath+"invocation/{id}/error", r.failure)
	mux.HandleFunc("POST "+runtimePath+"init/error", r.initError)
	mux.HandleFunc("GET "+frame.Path, r.exchange)
	mux.HandleFunc("POST "+sendPath+"{kind}/{name}/message", r.send)
	mux.HandleFunc("POST "+sendPath+"namespaces/{namespace}/{kind}/{name}/message", r.send)
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return r.m.ctx },
		ErrorLog:    slog.NewLogLogger(r.m.c.Logger.Handler(), slog.LevelDebug),
	}
}

// reject answers a program with an error, in the form of the Runtime API.
func reject(w http.ResponseWriter, code int, kind, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"errorType": kind, "errorMessage": fmt.Sprintf(format, args...)})
}

// pulls reports whether the pod has mode Poll. In mode Push it responds with 409.
func (r *receiver) pulls(w http.ResponseWriter) bool {
	if r.push != nil {
		reject(w, http.StatusConflict, "PushMode", "this pod has mode Push: messages are sent to port %d",
			r.queue.config.Port)
	}
	return r.push == nil
}

// next serves the long poll for the next message.
func (r *receiver) next(w http.ResponseWriter, req *http.Request) {
	if !r.pulls(w) {
		return
	}
	stop := make(chan struct{})
	end := context.AfterFunc(req.Context(), func() { close(stop) })
	e := r.queue.take(stop)
	end()
	if e == nil {
		reject(w, http.StatusGone, "Terminating", "the pod gets no more messages")
		return
	}
	head := w.Header()
	head.Set("Lambda-Runtime-Aws-Request-Id", e.ID)
	head.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(r.deadline(e).UnixMilli(), 10))
	head.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:coracle:worker:"+r.pod.Namespace+":"+r.name())
	if e.Trace != "" {
		head.Set(headerTrace, e.Trace)
	}
	if e.DeadLetter != "" {
		head.Set(workers.HeaderDeadLetter, e.DeadLetter)
	}
	head.Set(workers.HeaderAttempt, strconv.Itoa(int(e.Attempt)))
	head.Set("Content-Type", e.ContentType)
	head.Set("Content-Length", strconv.Itoa(len(e.payload.data)))
	if req.Context().Err() != nil {
		r.queue.giveBack(e)
		return
	}
	// After the first byte the program may have the message: end the attempt instead of giving it back.
	if _, err := w.Write(e.payload.data); err != nil {
		r.queue.resolveEntry(e, Outcome{
			Failure: workers.ReceiverLost, Text: "the program's connection broke while it got the message",
		})
	}
}

// deadline returns the end of an attempt that starts now: after the handler's timeout or, if earlier, at the sender's
// deadline.
func (r *receiver) deadline(e *entry) time.Time {
	at := time.Now().Add(r.queue.config.Timeout())
	if !e.Deadline.IsZero() && e.Deadline.Before(at) {
		return e.Deadline
	}
	return at
}

func (r *receiver) name() string {
	if r.queue.config.Worker != "" {
		return r.queue.config.Worker
	}
	return r.pod.Name
}

// body reads the body of a request. On failure it responds and returns nil. If the body is the reply to a message and
// is too large, the message has failed.
func (r *receiver) body(w http.ResponseWriter, req *http.Request) *payload {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	p, err := r.bytes.read(req.Body, req.ContentLength)
	var large *bounded.TooLargeError
	switch {
	case err == nil:
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return p
	case errors.As(err, &large):
		if id := req.PathValue("id"); id != "" {
			r.queue.resolve(id, Outcome{
				Failure:   workers.HandlerFailed,
				ErrorType: "TooLarge",
				Text:      fmt.Sprintf("the reply has more than %d bytes", workers.MaxPayload),
			})
		}
		discard(req)
		reject(w, http.StatusRequestEntityTooLarge, "TooLarge", "more than %d bytes", workers.MaxPayload)
	case errors.Is(err, errNoMemory):
		discard(req)
		w.Header().Set("Retry-After", "1")
		reject(w, http.StatusTooManyRequests, "NoMemory", "%v", err)
	default:
		reject(w, http.StatusBadRequest, "BadRequest", "%v", err)
	}
	return nil
}

// discard reads the rest of a rejected body. A client that sends the whole body before it reads the response would
// otherwise see a connection reset instead of the status. With "Expect: 100-continue" no body has been sent yet.
func discard(req *http.Request) {
	if req.ContentLength > 0 && req.Header.Get("Expect") != "" {
		return
	}
	_, _ = io.CopyN(io.Discard, req.Body, mostDiscarded)
}

func (r *receiver) answer(w http.ResponseWriter, req *http.Request, o Outcome) {
	if !r.queue.resolve(req.PathValue("id"), o) {
		unknown(w, req)
		return
	}
	accepted(w)
}

func unknown(w http.ResponseWriter, req *http.Request) {
	reject(w, http.StatusNotFound, "UnknownRequest",
		"no message with the ID %.64q is being handled: it has expired, or was answered before", req.PathValue("id"))
}

func accepted(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, "{\"status\":\"OK\"}\n")
}

func (r *receiver) response(w http.ResponseWriter, req *http.Request) {
	id := req.PathValue("id")
	if streams(req) {
		r.stream(w, req, id)
		return
	}
	p := r.body(w, req)
	if p == nil {
		return
	}
	// aws-lambda-go streams replies, so an error comes as a trailer.
	if kind := req.Trailer.Get(workers.HeaderErrorType); kind != "" {
		r.answer(w, req, trailed(Outcome{body: p}, req.Trailer))
		return
	}
	r.answer(w, req, Outcome{body: p, ContentType: clip(req.Header.Get("Content-Type"), 256)})
}

func (r *receiver) failure(w http.ResponseWriter, req *http.Request) {
	p := r.body(w, req)
	if p == nil {
		return
	}
	kind, text := errorOf(p.data, req.Header)
	p.release()
	r.answer(w, req, Outcome{Failure: workers.HandlerFailed, ErrorType: kind, Text: text})
}

func errorOf(data []byte, h http.Header) (kind, text string) {
	var e struct{ ErrorType, ErrorMessage string }
	if json.Unmarshal(data, &e) != nil || e.ErrorMessage == "" {
		e.ErrorMessage = strings.TrimSpace(string(data))
	}
	if e.ErrorType == "" {
		e.ErrorType = h.Get(workers.HeaderErrorType)
	}
	return clip(e.ErrorType, 256), clip(e.ErrorMessage, maxErrorText)
}

// clip cuts a text that a pod controls to most bytes and replaces control characters, so that it may be in a header.
func clip(s string, most int) string {
	s = bounded.Text(s, most)
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// initError records an event when the program reports that it cannot start.
func (r *receiver) initError(w http.ResponseWriter, req *http.Request) {
	p := r.body(w, req)
	if p == nil {
		return
	}
	kind, text := errorOf(p.data, req.Header)
	p.release()
	r.m.c.Event(r.pod, corev1.EventTypeWarning, "WorkerInitError", clip(kind+": "+text, 512))
	accepted(w)
}

// sendHeaders are the request headers that a program may set, replyHeaders the response headers that it gets.
var (
	sendHeaders = []string{
		"Content-Type", headerTrace, workers.HeaderWait, workers.HeaderTimeout, workers.HeaderDedupID,
		workers.HeaderEventID, workers.HeaderEventSource, workers.HeaderOrderKey, workers.HeaderEventKey,
		workers.HeaderEventTrace,
	}
	replyHeaders = []string{
		"Content-Type", "Retry-After", workers.HeaderID, workers.HeaderDuplicate,
		workers.HeaderPod, workers.HeaderFailure, workers.HeaderErrorType,
	}
)

// targetPath returns the API server's path for a message to a pod or service. It validates the names: the API server
// decodes the path, so that an escaped slash in a name would address another resource.
func targetPath(namespace, kind, name string) (string, error) {
	for _, segment := range []string{namespace, name} {
		if bad := validation.IsDNS1123Subdomain(segment); len(bad) > 0 {
			return "", fmt.Errorf("the message's target %q is not a name: %s", segment, bad[0])
		}
	}
	return "/api/v1/namespaces/" + namespace + "/" + kind + "/" + name + "/message", nil
}

// send sends a message for the program, with the permissions of the pod's service account.
func (r *receiver) send(w http.ResponseWriter, req *http.Request) {
	kind, namespace := req.PathValue("kind"), req.PathValue("namespace")
	if kind != "pods" && kind != "services" {
		reject(w, http.StatusNotFound, "NotFound", "messages are sent to pods or services")
		return
	}
	if namespace == "" {
		namespace = r.pod.Namespace
	}
	path, err := targetPath(namespace, kind, req.PathValue("name"))
	if err != nil {
		reject(w, http.StatusBadRequest, "BadRequest", "%v", err)
		return
	}
	if r.m.c.API == nil {
		reject(w, http.StatusServiceUnavailable, "Unavailable", "the node's agent cannot send")
		return
	}
	p := r.body(w, req)
	if p == nil {
		return
	}
	defer p.release()
	token, err := r.m.c.Token(req.Context(), r.pod)
	if err != nil {
		reject(w, http.StatusServiceUnavailable, "NoToken", "no token of the pod's service account: %v", err)
		return
	}
	out, err := http.NewRequestWithContext(req.Context(), http.MethodPost, path, bytes.NewReader(p.data))
	if err != nil {
		reject(w, http.StatusBadRequest, "BadRequest", "%v", err)
		return
	}
	out.Header.Set(workers.HeaderParts, "false") // this response is bounded
	for _, h := range sendHeaders {
		if v := req.Header.Get(h); v != "" {
			out.Header.Set(h, v)
		}
	}
	res, err := r.m.c.API.Do(out, token)
	if err != nil {
		reject(w, http.StatusBadGateway, "Unreachable", "the API server cannot be reached: %v", err)
		return
	}
	defer res.Body.Close()
	for _, h := range replyHeaders {
		if v := res.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, bounded.Reader(res.Body, 2*workers.MaxPayload))
}
