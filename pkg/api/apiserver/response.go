package apiserver

import (
	"bufio"
	"net"
	"net/http"
	"time"

	"github.com/coracle-dev/coracle/pkg/api/fairness"
)

// response records the status and size of a response and gives handlers access to the connection.
type response struct {
	http.ResponseWriter
	code    int
	written bool
	// ticket holds the request's seat, which is released when the response begins.
	ticket fairness.Ticket
	// stall aborts a stream whose client does not read; nil for responses within the server's WriteTimeout.
	stall  *time.Timer
	within time.Duration
}

// recorded returns the response created by serve, which filters may have wrapped.
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

// status returns the response's status code; net/http sends 200 if the handler wrote nothing.
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

// FlushError implements flushing for http.ResponseController.
func (r *response) FlushError() error {
	r.begin(http.StatusOK)
	if r.stall != nil {
		r.stall.Reset(r.within)
		defer r.stall.Stop()
	}
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// CloseNotify is an interface that upstream's filters expect of net/http's ResponseWriter.
func (r *response) CloseNotify() <-chan bool {
	if n, ok := r.ResponseWriter.(http.CloseNotifier); ok { //nolint:staticcheck // see above
		return n.CloseNotify()
	}
	return nil
}

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// unhurried removes the response's write deadline and instead limits how long the client may take for each part of it.
// Unsent bytes of the connection as a whole are handled by gathered; this is for HTTP/2 streams, whose client may read
// others but not this one.
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

// hijackable is an HTTP/1.1 response, whose connection can be hijacked.
type hijackable struct{ *response }

func (r hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.begin(http.StatusSwitchingProtocols)
	return r.ResponseWriter.(http.Hijacker).Hijack()
}
