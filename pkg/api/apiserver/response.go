package apiserver

import (
	"bufio"
	"cmp"
	"net"
	"net/http"
	"time"

	"github.com/coracle-dev/coracle/pkg/api/fairness"
)

// response records a response's status and size and gives handlers access to the connection.
type response struct {
	http.ResponseWriter
	code    int
	written bool
	// ticket holds the request's seat. The start of the response releases it.
	ticket fairness.Ticket
	// stall aborts a stream whose client does not read. It is nil for responses under the server's WriteTimeout.
	stall  *time.Timer
	within time.Duration
}

// recorded returns the response that serve created, which filters may have wrapped.
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

// status returns the response's status code: 200 if the handler wrote nothing.
func (r *response) status() int { return cmp.Or(r.code, http.StatusOK) }

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

func (r *response) FlushError() error {
	r.begin(http.StatusOK)
	if r.stall != nil {
		r.stall.Reset(r.within)
		defer r.stall.Stop()
	}
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// CloseNotify implements http.CloseNotifier, which upstream's filters require.
func (r *response) CloseNotify() <-chan bool {
	if n, ok := r.ResponseWriter.(http.CloseNotifier); ok { //nolint:staticcheck // see above
		return n.CloseNotify()
	}
	return nil
}

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// unhurried removes the write deadline and limits instead how long the client may take for each part of the
// response. It acts on HTTP/2 streams, where a client may read one stream but not another; gathered handles a
// connection that is not read at all.
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

// hijackable is an HTTP/1.1 response. Only its connection can be hijacked.
type hijackable struct{ *response }

func (r hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.begin(http.StatusSwitchingProtocols)
	return r.ResponseWriter.(http.Hijacker).Hijack()
}
