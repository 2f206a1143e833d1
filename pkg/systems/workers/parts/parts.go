// Package parts passes on replies that come in parts. Its invariant: at most Size bytes of a reply are in memory here.
package parts

import (
	"errors"
	"io"
	"net/http"
	"strings"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Size is the size of a part, in bytes.
const Size = 32 << 10

// maxTrailer bounds the text of an error in a trailer, in bytes: net/http reads 4 KiB of trailers.
const maxTrailer = 2 << 10

// Copy writes each part of a reply to w as it comes, and returns r's error; nil at its end. When w fails, the sender
// has gone: the rest is read and dropped, so that the program can finish. A nil w drops everything.
func Copy(w io.Writer, r io.Reader, buf []byte) error {
	for {
		n, err := r.Read(buf)
		if n > 0 && w != nil {
			if _, gone := w.Write(buf[:n]); gone != nil {
				w = nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Flushed is a response whose writes reach the client at once.
type Flushed struct{ http.ResponseWriter }

func (f Flushed) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if err == nil {
		err = http.NewResponseController(f.ResponseWriter).Flush()
	}
	return n, err
}

// Announce declares the trailers of Fail. It must come before the response's first byte.
func Announce(h http.Header) {
	h.Set("Trailer", strings.Join([]string{workers.HeaderFailure, workers.HeaderErrorType, workers.HeaderErrorText}, ", "))
}

// Fail sets the trailers of a reply that broke off.
func Fail(h http.Header, f workers.Failure, errorType, text string) {
	h.Set(workers.HeaderFailure, string(f))
	if errorType != "" {
		h.Set(workers.HeaderErrorType, errorType)
	}
	h.Set(workers.HeaderErrorText, bounded.Text(strings.Join(strings.Fields(text), " "), maxTrailer))
}
