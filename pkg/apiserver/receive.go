package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/apiserver/fairness"
)

// firstRead is how many bytes of a body are made room for before any of it has come.
const firstRead = 64 << 10

// heldBody is a request's body that has come as a whole.
type heldBody struct {
	bytes.Reader
	raw []byte
}

func (*heldBody) Close() error { return nil }

// receive reads the body before the request gets its seat, so that a client that sends slowly holds none. The bytes count
// as the flow's until the end of the request; memory is taken as they come, whatever length the client announces.
func (s *Server) receive(w http.ResponseWriter, req *http.Request, t *fairness.Ticket) error {
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength == 0 {
		return nil
	}
	if req.ContentLength > maxBody {
		return tooLarge()
	}
	// readBodiesWithin gave it RequestTimeout.
	if deadline, ok := req.Context().Deadline(); ok && time.Until(deadline) < s.cfg.RequestTimeout-time.Second {
		_ = http.NewResponseController(w).SetReadDeadline(deadline)
	}
	size := firstRead
	if n := req.ContentLength; n > 0 && n < firstRead {
		size = int(n) + 1 // one more, to find the end
	}
	if err := t.Hold(size); err != nil {
		return err
	}
	raw := make([]byte, 0, size)
	for {
		n, err := req.Body.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		switch {
		case len(raw) > maxBody:
			return tooLarge()
		case errors.Is(err, io.EOF):
			held := &heldBody{raw: raw}
			held.Reset(raw)
			req.Body = held
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errTimedOut()
		case err != nil:
			return apierrors.NewBadRequest("the request's body could not be read: " + err.Error())
		}
		if len(raw) == cap(raw) {
			more := min(cap(raw), maxBody+1-cap(raw))
			if err := t.Hold(more); err != nil {
				return err
			}
			raw = append(make([]byte, 0, cap(raw)+more), raw...)
		}
	}
}

// tooMany answers a request that was refused for the sake of others, with 429, or with the error that it is otherwise.
func (s *Server) tooMany(w http.ResponseWriter, req *http.Request, err error) {
	var rejected *fairness.Rejected
	if errors.As(err, &rejected) {
		err = apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
	}
	s.fail(w, req, err)
}

// readBodiesWithin gives the bodies of requests a time to arrive in.
func readBodiesWithin(d time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d))
		}
		next.ServeHTTP(w, req)
	})
}
