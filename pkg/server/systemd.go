package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

// supervised tells systemd when the process serves and when it stops (sd_notify(3)), and resets the unit's watchdog.
// Without systemd it does nothing. It starts after all other components.
type supervised struct {
	run.Readiness
	again func() bool // reports whether the process starts its components again when they end
	log   *slog.Logger
}

// Name implements run.Component.
func (*supervised) Name() string { return "systemd" }

// Run implements run.Component.
func (s *supervised) Run(ctx context.Context) error {
	s.notify(daemon.SdNotifyReady)
	s.SetReady()
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("cannot use systemd's watchdog", "error", err)
	}
	var due <-chan time.Time
	if limit > 0 {
		ticker := time.NewTicker(limit / 2)
		defer ticker.Stop()
		due = ticker.C
	}
	for {
		select {
		case <-due:
			s.notify(daemon.SdNotifyWatchdog)
		case <-ctx.Done():
			if !s.again() {
				s.notify(daemon.SdNotifyStopping)
			}
			return nil
		}
	}
}

func (s *supervised) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("cannot notify systemd", "state", state, "error", err)
	}
}

// journal returns w, or a writer that marks each line's priority (sd-daemon(3)) if f is connected to systemd's journal.
func journal(w io.Writer, f *os.File) io.Writer {
	info, err := f.Stat()
	if err != nil {
		return w
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Getenv("JOURNAL_STREAM") != fmt.Sprintf("%d:%d", stat.Dev, stat.Ino) {
		return w
	}
	return priorities{w}
}

// priorities expects one line per Write, with its level as a text or JSON field.
type priorities struct{ io.Writer }

func (p priorities) Write(line []byte) (int, error) {
	priority := "<6>" // info
	switch {
	case hasLevel(line, slog.LevelError):
		priority = "<3>"
	case hasLevel(line, slog.LevelWarn):
		priority = "<4>"
	case hasLevel(line, slog.LevelDebug):
		priority = "<7>"
	}
	n, err := p.Writer.Write(append([]byte(priority), line...))
	return max(0, n-len(priority)), err
}

// hasLevel looks for the level at the start of a line, where only the time precedes it.
func hasLevel(line []byte, l slog.Level) bool {
	head := line[:min(len(line), 80)]
	text, json := " level="+l.String()+" ", `,"level":"`+l.String()+`",`
	first := bytes.IndexAny(head, " ,")
	return first > 0 && (bytes.HasPrefix(head[first:], []byte(text)) || bytes.HasPrefix(head[first:], []byte(json)))
}
