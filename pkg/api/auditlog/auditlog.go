// Package auditlog writes the audit events of an API server (audit.k8s.io/v1) to a file, one per line, and sends
// them to a webhook in batches. Its invariant: a request never waits for the disk or the webhook. Each has a buffer,
// limited in events and bytes. Events that do not fit are dropped, counted and logged.
package auditlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Config configures a Log with a file, a webhook or both. The options have upstream's names and meanings.
type Config struct {
	// PolicyFile is the path of an audit.k8s.io/v1 Policy.
	PolicyFile string
	// Path is the file to write. "-" is standard output, which is not rotated. Empty for none.
	Path string
	// Format is JSON (the default) or Legacy, a line of text.
	Format string
	// MaxSize is the size in MiB at which the file is rotated (default 100), MaxBackups the number of rotated files
	// to keep, and MaxAge their age in days. Zero keeps all. Compress compresses rotated files with gzip.
	MaxAge, MaxBackups, MaxSize int
	Compress                    bool
	Webhook                     Webhook
	Logger                      *slog.Logger

	out io.WriteCloser // for tests
}

// Formats of the file.
const (
	JSON   = "json"
	Legacy = "legacy"
)

const (
	// mostEvents and mostBytes limit the events that wait for the disk.
	mostEvents = 10_000
	mostBytes  = 32 << 20
	// ownBytes is the approximate size of an event without its objects.
	ownBytes = 2 << 10
	// fullWrite is the number of bytes that are combined into one write while more events wait. mostKept is the
	// largest buffer that is kept for reuse.
	fullWrite = 64 << 10
	mostKept  = 1 << 20
	// reportEvery is the minimum interval of logs about dropped events. longestReason limits the logged reason, in
	// bytes.
	reportEvery   = 10 * time.Second
	longestReason = 1024
	// stopped is the reason for events that could not be passed on within lastChance.
	stopped = "the server has stopped"
	// largestPolicy limits the policy, in bytes.
	largestPolicy = 1 << 20
	// lastChance is how long waiting events are still passed on after the server has stopped.
	lastChance = 2 * time.Second
)

// Log is an audit log. It accepts events once it is open. Run writes them.
type Log struct {
	audit.PolicyRuleEvaluator
	sinks  []sink
	events atomic.Int64
}

// sink is a destination of events: the file or the webhook.
type sink interface {
	add(e *auditinternal.Event)
	// run passes events on until ctx is done, and then for up to two seconds the buffered ones.
	run(ctx context.Context) error
	name() string
	lost() int64
}

type file struct {
	*buffer
	out    io.WriteCloser
	encode func(*auditinternal.Event, io.Writer) error
}

var _ audit.Sink = (*Log)(nil)

// Open reads the policy and checks that the file can be written.
func Open(cfg Config) (*Log, error) {
	text, err := bounded.Configured(cfg.PolicyFile, largestPolicy)
	if err != nil {
		return nil, fmt.Errorf("audit-policy-file: %w", err)
	}
	p, err := policy.LoadPolicyFromBytes(text)
	if err != nil {
		return nil, fmt.Errorf("audit-policy-file %s: %w", cfg.PolicyFile, err)
	}
	l := &Log{PolicyRuleEvaluator: policy.NewPolicyRuleEvaluator(p)}
	if cfg.Path != "" || cfg.out != nil {
		f, err := openFile(cfg)
		if err != nil {
			return nil, fmt.Errorf("audit-log-path: %w", err)
		}
		l.sinks = append(l.sinks, f)
	}
	if cfg.Webhook.Kubeconfig != "" {
		w, err := newHook(cfg)
		if err != nil {
			return nil, fmt.Errorf("audit-webhook-config-file: %w", err)
		}
		l.sinks = append(l.sinks, w)
	}
	return l, nil
}

// Events returns the number of audit events so far.
func (l *Log) Events() int64 { return l.events.Load() }

// Dropped returns the number of events that the sink "log" or "webhook" dropped because its buffer was full or a
// write failed.
func (l *Log) Dropped(name string) (n int64) {
	for _, s := range l.sinks {
		if s.name() == name {
			n += s.lost()
		}
	}
	return n
}

// ProcessEvents buffers or drops events. It always returns true: a request must not fail because it cannot be
// logged.
func (l *Log) ProcessEvents(events ...*auditinternal.Event) bool {
	l.events.Add(int64(len(events)))
	for _, e := range events {
		own := e.DeepCopy() // the request continues to modify the event
		for _, s := range l.sinks {
			s.add(own)
		}
	}
	return true
}

// Run passes events on until ctx is done, and then for up to two seconds the buffered ones.
func (l *Log) Run(ctx context.Context) error {
	errs := make([]error, len(l.sinks))
	var all sync.WaitGroup
	for i, s := range l.sinks {
		all.Go(func() { errs[i] = s.run(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func openFile(cfg Config) (*file, error) {
	f := &file{buffer: newBuffer("log", mostEvents, cfg.Logger), out: cfg.out}
	encoder := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	f.encode = func(e *auditinternal.Event, w io.Writer) error { // the encoding ends with a newline
		own := *e // copy: encoding sets the type, and sinks share the event
		return encoder.Encode(&own, w)
	}
	if cfg.Format == Legacy {
		f.encode = func(e *auditinternal.Event, w io.Writer) error {
			_, err := io.WriteString(w, audit.EventString(e)+"\n")
			return err
		}
	}
	switch {
	case f.out != nil:
	case cfg.Path == "-":
		f.out = os.Stdout
	default:
		if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
			return nil, err
		}
		opened, err := os.OpenFile(cfg.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if err := opened.Close(); err != nil {
			return nil, err
		}
		f.out = &lumberjack.Logger{
			Filename:   cfg.Path,
			MaxAge:     cfg.MaxAge,
			MaxBackups: cfg.MaxBackups,
			MaxSize:    cfg.MaxSize,
			Compress:   cfg.Compress,
		}
	}
	return f, nil
}

func (f *file) run(ctx context.Context) error {
	// Write only whole lines, because the file may be rotated between two writes.
	var lines bytes.Buffer
	n := 0 // number of lines
	flush := func() {
		f.write(lines.Bytes(), n)
		lines.Reset()
		n = 0
		if lines.Cap() > mostKept {
			lines = bytes.Buffer{}
		}
	}
	line := func(e *auditinternal.Event) {
		f.took(e)
		before := lines.Len()
		if err := f.encode(e, &lines); err != nil {
			lines.Truncate(before)
			f.drop(1, err.Error())
			return
		}
		if lines.Len()-before > fullWrite { // write a long line alone, since it may exceed the file's maximum size
			f.write(lines.Next(before), n)
			n = 0
		}
		n++
	}
	for ctx.Err() == nil {
		select {
		case e := <-f.waiting:
			line(e)
			if len(f.waiting) == 0 || lines.Len() > fullWrite {
				flush()
			}
		case <-ctx.Done():
		}
	}
	for until := time.Now().Add(lastChance); len(f.waiting) > 0 && time.Now().Before(until); {
		if line(<-f.waiting); lines.Len() > fullWrite {
			flush()
		}
	}
	flush()
	if left := len(f.waiting); left > 0 {
		f.drop(left, stopped)
	}
	if f.out == os.Stdout {
		return nil
	}
	return f.out.Close()
}

// write writes n lines, or drops them if that fails.
func (f *file) write(lines []byte, n int) {
	if n == 0 {
		return
	}
	if _, err := f.out.Write(lines); err != nil {
		f.drop(n, err.Error())
	}
}
