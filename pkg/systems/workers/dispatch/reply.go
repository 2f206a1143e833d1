package dispatch

import (
	"io"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// BrokenError is the error of a reply that broke off.
type BrokenError struct{ Outcome Outcome }

func (e *BrokenError) Error() string { return describe(e.Outcome.Outcome) }

// begin gives the sender a reply in parts. From then on the message has no further attempt.
func (s *state) begin(f *flight, contentType string) io.Writer {
	in, out := io.Pipe()
	s.mu.Lock()
	w := s.waits[f.m.ID]
	if w == nil || w.gone || s.flights[f.m.ID] != f {
		s.mu.Unlock()
		_ = in.Close()
		return out
	}
	w.reply = out
	s.mu.Unlock()
	w.done(Outcome{
		Outcome: workers.Outcome{ContentType: contentType}, Pod: f.pod.name, Attempts: f.m.Attempts, Parts: in,
	})
	return out
}

// end calls done or, if the reply has begun, ends it.
func (w *wait) end(o Outcome) {
	switch {
	case w.reply == nil:
		w.done(o)
	case o.Failure == "":
		o.Free()
		_ = w.reply.Close()
	default:
		_ = w.reply.CloseWithError(&BrokenError{o})
	}
}
