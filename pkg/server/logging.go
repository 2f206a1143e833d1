package server

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// quietLibraries sends what the Kubernetes libraries say to log, warnings and errors only: what they call
// information is about themselves.
func quietLibraries(log *slog.Logger) {
	slog.SetDefault(log)
	quiet := logr.FromSlogHandler(atLeast{log.Handler(), slog.LevelWarn})
	klog.SetLogger(quiet)
	ctrllog.SetLogger(quiet)
}

// atLeast drops records below a level.
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
