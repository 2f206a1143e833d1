package apiserver

import (
	"bufio"
	"net"
	"net/http"
	"time"

	"github.com/coracle-dev/coracle/pkg/apiserver/fairness"
)

// response counts what was written and lets handlers reach the connection.
type response struct {
	http.ResponseWriter
	code    int
	written bool
	// ticket is the request's place among others. Its seat is given back when the answer begins.
	ticket fairness.Ticket
	// stall ends a stream whose client does not read; nil for answers that end within the server's WriteTimeout.
	stall  *time.Timer
	within time.Duration
}

// recorded is the response that serve made, which filters may have wrapped.
func recorded(w http.ResponseWriter) *response {
	for {
		switch is := w.(type) {
		case *response:
			return is
		case hijackable:
			return is.response
		case interface{ Unwrap() http.ResponseWriter }:
			w = is.Unwrap()
		default:
			return &response{ResponseWriter: w}
		}
	}
}

// status is the code of the answer; net/http sends 200 for a handler that wrote nothing.
func (r *response) status() int {
	if r.code == 0 {
		return http.StatusOK
	}
	return r.code
}

func (r *response) begin(code int) {
	if !r.written {
		r.written, r.code = true, code
		r.ticket.Release()
	}
}

func (r *response) WriteHeader(code int) {
	r.begin(code)
	r.ResponseWriter.WriteHeader(code)
}

func (r *response) Write(b []byte) (int, error) {
	r.begin(http.StatusOK)
	if r.stall != nil {
		r.stall.Reset(r.within)
		defer r.stall.Stop()
	}
	return r.ResponseWriter.Write(b)
}

func (r *response) Flush() { _ = r.FlushError() }

// FlushError is what http.ResponseController flushes with.
func (r *response) FlushError() error {
	r.begin(http.StatusOK)
	if r.stall != nil {
		r.stall.Reset(r.within)
		defer r.stall.Stop()
	}
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// CloseNotify makes upstream's filters take this for what net/http gives.
func (r *response) CloseNotify() <-chan bool {
	if n, ok := r.ResponseWriter.(http.CloseNotifier); ok { //nolint:staticcheck // see above
		return n.CloseNotify()
	}
	return nil
}

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// unhurried lets the answer take as long as it likes, and its client no longer than within for each part of it. What a
// connection has not sent is the connection's matter (gathered); here it is streams of HTTP/2, whose client may read
// others and leave this one.
func (r *response) unhurried(req *http.Request, within time.Duration) {
	rc := http.NewResponseController(r.ResponseWriter)
	if req.ContentLength != 0 {
		_ = rc.SetReadDeadline(time.Time{})
	}
	if rc.SetWriteDeadline(time.Time{}) != nil || req.ProtoMajor < 2 {
		return
	}
	r.within = within
	r.stall = time.AfterFunc(within, func() { _ = rc.SetWriteDeadline(time.Now()) })
	r.stall.Stop()
}

// hijackable is a response of HTTP/1.1, whose connection can be taken over.
type hijackable struct{ *response }

func (r hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.begin(http.StatusSwitchingProtocols)
	return r.ResponseWriter.(http.Hijacker).Hijack()
}
