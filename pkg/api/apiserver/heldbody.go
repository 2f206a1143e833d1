package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/api/fairness"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// firstRead is the number of bytes allocated for a body before any of it has been received.
const firstRead = 64 << 10

// heldBody is a request body that has been received completely.
type heldBody struct {
	bytes.Reader
	raw []byte
}

func (*heldBody) Close() error { return nil }

// holdBody reads the body before the request takes a seat, so that a slow sender holds none. The bytes count against
// the flow until the request ends. Memory is allocated as bytes arrive, whatever Content-Length says.
func (s *Server) holdBody(w http.ResponseWriter, req *http.Request, t *fairness.Ticket) error {
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength == 0 {
		return nil
	}
	if req.ContentLength > maxBody {
		return tooLarge()
	}
	// readBodiesWithin has already set a deadline of RequestTimeout.
	if deadline, ok := req.Context().Deadline(); ok && time.Until(deadline) < s.cfg.RequestTimeout-time.Second {
		_ = http.NewResponseController(w).SetReadDeadline(deadline)
	}
	size := firstRead
	if n := req.ContentLength; n > 0 && n < firstRead {
		size = int(n) + 1 // one byte more, to detect the end
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

// receiveAtMost reads the body of a stream whose limit, sub.MaxBody, is lower than maxBody.
func (s *Server) receiveAtMost(w http.ResponseWriter, req *http.Request, t *fairness.Ticket,
	sub *kind.Subresource) error {
	if req.ContentLength > sub.MaxBody {
		return apierrors.NewRequestEntityTooLargeError("a " + sub.Name + " has at most " + itoa(sub.MaxBody) + " bytes")
	}
	return s.holdBody(w, req, t)
}

// tooMany responds to a request that exceeds a limit: with 429 if fairness rejected it, otherwise with err.
func (s *Server) tooMany(w http.ResponseWriter, req *http.Request, err error) {
	if _, ok := errors.AsType[*fairness.Rejected](err); ok {
		err = errTooMany()
	}
	s.fail(w, req, err)
}

func errTooMany() error {
	return apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
}

func readBodiesWithin(d time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d))
		}
		next.ServeHTTP(w, req)
	})
}
