package messages

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/workers/parts"
)

// Receive reads a message's payload from a request of the API server, delivers it, and responds.
func (m *Manager) Receive(w http.ResponseWriter, req *http.Request, t Target, msg Message) {
	bytes, limit := m.bytes, workers.MaxPayload
	if r := m.receiver(t.UID); r != nil {
		bytes = r.bytes
		if r.queue.config.Batch != nil {
			limit = workers.MaxDelivery
		}
	}
	p, err := bytes.readUpTo(req.Body, req.ContentLength, limit)
	var large *bounded.TooLargeError
	switch {
	case errors.As(err, &large):
		discard(req)
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	case errors.Is(err, errNoMemory):
		discard(req)
		respondFailure(w, Outcome{Failure: workers.QueueFull, Text: err.Error(), Untouched: true})
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	msg.payload = p
	if msg.ID == "" {
		p.release()
		http.Error(w, workers.HeaderID+" is missing", http.StatusBadRequest)
		return
	}
	if req.Header.Get(workers.HeaderParts) == "true" {
		m.receiveParts(w, req, t, msg)
		return
	}
	respond(w, m.Deliver(req.Context(), t, msg))
}

// receiveParts delivers a message and passes on a reply in parts.
func (m *Manager) receiveParts(w http.ResponseWriter, req *http.Request, t Target, msg Message) {
	in, out := io.Pipe()
	begun, got := make(chan string, 1), make(chan Outcome, 1)
	msg.Begin = func(contentType string) io.Writer {
		begun <- contentType
		return out
	}
	go func() {
		got <- m.Deliver(req.Context(), t, msg)
		_ = out.Close()
	}()
	select {
	case o := <-got: // no part was passed on: in has not been read
		respond(w, o)
		return
	case contentType := <-begun:
		head := w.Header()
		head.Set(workers.HeaderParts, "true")
		head["Content-Type"] = nil
		if contentType != "" {
			head.Set("Content-Type", contentType)
		}
		parts.Announce(head)
	}
	_, err := io.CopyBuffer(parts.Flushed{ResponseWriter: w}, in, make([]byte, parts.Size))
	_ = in.Close() // if the server has gone, the rest is dropped
	if o := <-got; o.Failure != "" {
		parts.Fail(w.Header(), o.Failure, o.ErrorType, o.Text)
	} else if o.release(); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func respond(w http.ResponseWriter, o Outcome) {
	if o.Failure != "" {
		respondFailure(w, o)
		return
	}
	head := w.Header()
	if o.ContentType != "" {
		head.Set("Content-Type", o.ContentType)
	} else {
		head["Content-Type"] = nil // prevents content sniffing
	}
	defer o.body.release()
	head.Set("Content-Length", strconv.Itoa(len(o.body.data)))
	_, _ = w.Write(o.body.data)
}

func respondFailure(w http.ResponseWriter, o Outcome) {
	head := w.Header()
	head.Set(workers.HeaderFailure, string(o.Failure))
	head.Set("Content-Type", "text/plain; charset=utf-8")
	if o.ErrorType != "" {
		head.Set(workers.HeaderErrorType, o.ErrorType)
	}
	if o.Untouched {
		head.Set(workers.HeaderUntouched, "true")
	}
	w.WriteHeader(o.Failure.Code())
	_, _ = io.WriteString(w, o.Text)
}
