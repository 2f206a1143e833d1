package store

import (
	"context"
	"log/slog"
	"runtime"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newZap returns a logger for etcd that writes warnings and errors to log. Where etcd would exit the process, as when
// the disk refuses a write, fatal is called instead and the goroutine exits.
func newZap(log *slog.Logger, fatal func(string)) *zap.Logger {
	return zap.New(&slogCore{log: log, fatal: fatal}, zap.WithFatalHook(exitGoroutine{}),
		zap.WithPanicHook(exitGoroutine{}))
}

type exitGoroutine struct{}

func (exitGoroutine) OnWrite(*zapcore.CheckedEntry, []zapcore.Field) { runtime.Goexit() }

type slogCore struct {
	log    *slog.Logger
	fatal  func(string)
	fields []zapcore.Field
}

// harmless are messages that etcd logs at every start of a single member, or about options that are set on purpose.
var harmless = []string{
	"Running http and grpc server on single port",
	"failed to update storage version",
	"is unpromotable and can not campaign", // lead was called slightly too early
	"cannot campaign at term",
	"simple token is not cryptographically signed",
	"leader failed to send out heartbeat on time",
	"Failed to detect schema version",
	"failed to publish local member", // retried until the log is replayed
	"interrupted due to stop signal", // a compaction; the next start resumes it
}

func (c *slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c *slogCore) With(f []zapcore.Field) zapcore.Core {
	return &slogCore{c.log, c.fatal, append(c.fields[:len(c.fields):len(c.fields)], f...)}
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	for _, h := range harmless {
		if strings.Contains(e.Message, h) {
			level = slog.LevelDebug
		}
	}
	if e.Level < zapcore.DPanicLevel && !c.log.Enabled(context.Background(), level) {
		return nil
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	attrs := make([]any, 0, 2*len(enc.Fields))
	var cause string
	for k, v := range enc.Fields {
		attrs = append(attrs, k, v)
		if s, ok := v.(string); ok && k == "error" {
			cause = ": " + s
		}
	}
	c.log.Log(context.Background(), level, "etcd: "+e.Message, attrs...)
	if e.Level >= zapcore.DPanicLevel && c.fatal != nil {
		c.fatal(e.Message + cause)
	}
	return nil
}

func (c *slogCore) Sync() error { return nil }
