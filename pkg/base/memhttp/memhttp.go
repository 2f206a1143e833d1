// Package memhttp sends HTTP requests to handlers of this process, without a connection. Invariant: a response larger
// than its limit is refused before more than the limit is in memory.
package memhttp

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
)

// Call serves a request with a handler of this process and returns its response. A body larger than limit bytes is an
// error. Panics of the handler are passed on, except http.ErrAbortHandler, which is an error.
func Call(h http.Handler, req *http.Request, limit int) (res *http.Response, err error) {
	w := &recorder{header: http.Header{}, limit: limit}
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler { //nolint:errorlint // net/http compares it by identity too
				panic(p)
			}
			res, err = nil, errors.New("the handler ended the request")
		}
	}()
	h.ServeHTTP(w, req)
	if err := req.Context().Err(); err != nil && w.code == 0 {
		return nil, err
	}
	if w.large {
		return nil, errors.New("the response is too large")
	}
	return &http.Response{
		StatusCode: w.status(), Status: http.StatusText(w.status()), Header: w.header, Body: io.NopCloser(&w.body),
		Request: req,
		Proto:   "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
	limit  int
	large  bool
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code = code
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Len()+len(b) > r.limit {
		r.large = true
		return 0, errors.New("too large")
	}
	return r.body.Write(b)
}

func (r *recorder) status() int { return cmp.Or(r.code, http.StatusOK) }
