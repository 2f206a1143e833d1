package messages

import (
	"cmp"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/workers/parts"
)

// Headers of a reply in parts (AWS Lambda, "Implementing response streaming in a custom runtime").
const (
	headerMode      = "Lambda-Runtime-Function-Response-Mode"
	headerErrorBody = "Lambda-Runtime-Function-Error-Body"
)

// streams reports whether a program sends its reply in parts. aws-lambda-go announces trailers with every reply and
// sets no mode; only its replies from an io.Reader are not JSON.
func streams(req *http.Request) bool {
	if strings.EqualFold(req.Header.Get(headerMode), "streaming") {
		return true
	}
	_, trailer := req.Trailer[workers.HeaderErrorType]
	return trailer && req.ContentLength < 0 && !strings.HasPrefix(req.Header.Get("Content-Type"), "application/json")
}

// stream serves a reply in parts. It ends with the attempt's timeout at the latest.
func (r *receiver) stream(w http.ResponseWriter, req *http.Request, id string) {
	if !r.m.begin() {
		reject(w, http.StatusServiceUnavailable, "Unavailable", "the node's agent stops")
		return
	}
	defer r.m.wg.Done()
	rc := http.NewResponseController(w)
	e, until := r.queue.answers(id)
	if e == nil {
		_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
		w.Header().Set("Connection", "close") // the rest is not read
		unknown(w, req)
		return
	}
	_ = rc.SetReadDeadline(until)
	o := r.inParts(e, req.Body, clip(req.Header.Get("Content-Type"), 256))
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	switch failure := o.Failure; {
	case failure != "":
		r.queue.resolveEntry(e, o)
		w.Header().Set("Connection", "close")
		reject(w, failure.Code(), cmp.Or(o.ErrorType, string(failure)), "%s", o.Text)
	case !r.queue.resolveEntry(e, trailed(o, req.Trailer)):
		unknown(w, req)
	default:
		accepted(w)
	}
}

// inParts reads a reply of unknown length. If it does not end with its first part, it is passed on as it comes to a
// sender that takes parts, and dropped if none waits. Otherwise it is read as a whole. Only a failure before the first
// part was passed on can lead to a further attempt.
func (r *receiver) inParts(e *entry, body io.Reader, contentType string) Outcome {
	if e.Begin == nil && !e.Deadline.IsZero() {
		p, err := r.bytes.read(body, -1)
		if err != nil {
			return unread(err)
		}
		return Outcome{body: p, ContentType: contentType}
	}
	if !r.bytes.take(parts.Size + overhead) {
		return unread(errNoMemory)
	}
	p := &payload{bytes: r.bytes, held: parts.Size + overhead, data: make([]byte, parts.Size)}
	body = bounded.Reader(body, workers.MaxReply)
	n, err := 0, error(nil)
	for n == 0 && err == nil {
		n, err = body.Read(p.data)
	}
	if errors.Is(err, io.EOF) {
		p.data = p.data[:n]
		return Outcome{body: p, ContentType: contentType}
	}
	defer p.release()
	if err != nil {
		return unread(err)
	}
	var to io.Writer
	if e.Begin != nil {
		to = e.Begin(contentType)
		if _, gone := to.Write(p.data[:n]); gone != nil {
			to = nil
		}
	}
	if err := parts.Copy(to, body, p.data); err != nil {
		return unread(err)
	}
	return Outcome{body: &payload{}, ContentType: contentType}
}

// unread returns the outcome of a reply that could not be read.
func unread(err error) Outcome {
	var large *bounded.TooLargeError
	switch {
	case errors.As(err, &large):
		return Outcome{Failure: workers.HandlerFailed, ErrorType: "TooLarge", Text: err.Error()}
	case errors.Is(err, errNoMemory):
		return Outcome{Failure: workers.HandlerFailed, ErrorType: "NoMemory", Text: err.Error()}
	}
	return Outcome{Failure: workers.ReceiverLost, Text: "the program's reply broke off: " + err.Error()}
}

// trailed returns the outcome of a reply with its trailers, which report an error after its beginning.
func trailed(o Outcome, trailer http.Header) Outcome {
	kind := trailer.Get(workers.HeaderErrorType)
	if o.Failure != "" || kind == "" {
		return o
	}
	o.release()
	text := ""
	if data, err := base64.StdEncoding.DecodeString(trailer.Get(headerErrorBody)); err == nil {
		_, text = errorOf(data, nil)
	}
	return Outcome{
		Failure: workers.HandlerFailed, ErrorType: clip(kind, 256),
		Text: cmp.Or(text, "the program failed while it sent its reply"),
	}
}
