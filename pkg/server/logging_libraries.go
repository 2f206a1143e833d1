package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// libraries handles log records of libraries. Clients, even unauthenticated ones, can influence the number and
// length of such records. It therefore truncates texts, counts records beyond mostRecords in recordsEvery without
// logging them, and drops unremarkable records.
type libraries struct {
	slog.Handler
	rate *bounded.Rate
}

const (
	mostRecords  = 50
	recordsEvery = 10 * time.Second
	// longestRecord is the maximum length of a text in a record, in bytes.
	longestRecord = 2048
)

func fromLibraries(h slog.Handler) slog.Handler {
	return libraries{h, &bounded.Rate{Most: mostRecords, Every: recordsEvery}}
}

func (h libraries) Handle(ctx context.Context, r slog.Record) error {
	if unremarkable(r) {
		return nil
	}
	skipped, ok := h.rate.Allow()
	if !ok {
		return nil
	}
	short := slog.NewRecord(r.Time, r.Level, bounded.Text(r.Message, longestRecord), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		short.AddAttrs(cut(a))
		return true
	})
	if skipped > 0 {
		more := slog.NewRecord(r.Time, r.Level, "records of libraries not logged", 0)
		more.AddAttrs(slog.Int("count", skipped))
		if err := h.Handler.Handle(ctx, more); err != nil {
			return err
		}
	}
	return h.Handler.Handle(ctx, short)
}

// cut truncates the text of an attribute to longestRecord.
func cut(a slog.Attr) slog.Attr {
	if k := a.Value.Kind(); k == slog.KindString || k == slog.KindAny {
		if text := fmt.Sprintf("%+v", a.Value.Any()); len(text) > longestRecord {
			a.Value = slog.StringValue(bounded.Text(text, longestRecord))
		}
	}
	return a
}

// unremarkable reports whether a record is of no use to an administrator: the end of an exec or attach, after which
// the library closes the connection itself, or an invalid query, which the client sees in its response.
func unremarkable(r slog.Record) bool {
	switch r.Message {
	case "Couldn't parse request":
		return true
	case "Error on socket receive":
		ended := false
		r.Attrs(func(a slog.Attr) bool {
			err, _ := a.Value.Any().(error)
			ended = errors.Is(err, net.ErrClosed)
			return !ended
		})
		return ended
	}
	return false
}

func (h libraries) WithAttrs(attrs []slog.Attr) slog.Handler {
	short := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		short[i] = cut(a)
	}
	return libraries{h.Handler.WithAttrs(short), h.rate}
}

func (h libraries) WithGroup(name string) slog.Handler {
	return libraries{h.Handler.WithGroup(name), h.rate}
}
