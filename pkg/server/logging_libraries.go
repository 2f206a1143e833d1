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

// libraries handles records of libraries, which say what clients sent as long and as often as these send it, before
// they are authenticated, too: their texts are cut, and what is more than mostRecords in recordsEvery is only counted.
// What is no news is dropped.
type libraries struct {
	slog.Handler
	rate *bounded.Rate
}

const (
	mostRecords  = 50
	recordsEvery = 10 * time.Second
	// longestRecord is the number of bytes of a text in a record.
	longestRecord = 2048
)

func fromLibraries(h slog.Handler) slog.Handler {
	return libraries{h, &bounded.Rate{Most: mostRecords, Every: recordsEvery}}
}

// Handle implements slog.Handler.
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

// cut returns an attribute whose text is no longer than longestRecord.
func cut(a slog.Attr) slog.Attr {
	if k := a.Value.Kind(); k == slog.KindString || k == slog.KindAny {
		if text := fmt.Sprintf("%+v", a.Value.Any()); len(text) > longestRecord {
			a.Value = slog.StringValue(bounded.Text(text, longestRecord))
		}
	}
	return a
}

// unremarkable reports whether a record says what is no news: that somebody's exec or attach ended, for which the
// library closes the connection itself, or that a query makes no sense, which its client is told.
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

// WithAttrs implements slog.Handler.
func (h libraries) WithAttrs(attrs []slog.Attr) slog.Handler {
	short := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		short[i] = cut(a)
	}
	return libraries{h.Handler.WithAttrs(short), h.rate}
}

// WithGroup implements slog.Handler.
func (h libraries) WithGroup(name string) slog.Handler {
	return libraries{h.Handler.WithGroup(name), h.rate}
}
