package server

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// logHandler returns a handler that writes records from the level up to w, as text or JSON. Both formats write
// durations as text such as "1.5s".
func logHandler(w io.Writer, level, format string) (slog.Handler, error) {
	options := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, err
	}
	options.Level = least
	if format == "json" {
		return slog.NewJSONHandler(w, options), nil
	}
	return slog.NewTextHandler(w, options), nil
}

func component(log *slog.Logger, name string) *slog.Logger {
	h := log.Handler()
	if n, ok := h.(named); ok { // replace the component instead of adding a second one
		h = n.plain
	}
	return slog.New(named{h, h.WithAttrs([]slog.Attr{slog.String(componentKey, name)})})
}

const componentKey = "component"

// named adds the component's name to records that have none.
type named struct{ plain, with slog.Handler }

func (h named) Enabled(ctx context.Context, l slog.Level) bool { return h.plain.Enabled(ctx, l) }

func (h named) Handle(ctx context.Context, r slog.Record) error {
	has := false
	r.Attrs(func(a slog.Attr) bool {
		has = a.Key == componentKey
		return !has
	})
	if has {
		return h.plain.Handle(ctx, r)
	}
	return h.with.Handle(ctx, r)
}

func (h named) WithAttrs(attrs []slog.Attr) slog.Handler {
	return named{h.plain.WithAttrs(attrs), h.with.WithAttrs(attrs)}
}

func (h named) WithGroup(name string) slog.Handler {
	return named{h.plain.WithGroup(name), h.with.WithGroup(name)}
}

// quietLibraries sends warnings and errors of the Kubernetes libraries to log; their info records describe
// internals. The libraries have one logger per process, so only the first call has an effect.
func quietLibraries(log *slog.Logger) {
	quieted.Do(func() {
		slog.SetDefault(log)
		quiet := logr.FromSlogHandler(fromLibraries(atLeast{log.Handler(), slog.LevelWarn}))
		klog.SetLogger(quiet)
		ctrllog.SetLogger(quiet)
	})
}

var quieted sync.Once //nolint:gochecknoglobals // as the loggers that it guards

type atLeast struct {
	slog.Handler
	level slog.Level
}

func (h atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level && h.Handler.Enabled(ctx, l)
}

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs), h.level}
}

func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.Handler.WithGroup(name), h.level}
}

// NewLog returns a logger that writes to standard error with the given level and format.
func NewLog(level, format string) (*slog.Logger, error) {
	handler, err := logHandler(os.Stderr, level, format)
	if err != nil {
		return nil, err
	}
	return component(slog.New(handler), "server"), nil
}
