// Package auditlog writes the audit events of an API server (audit.k8s.io/v1) to a file, one JSON object per line.
//
// It may import only the Kubernetes libraries. Its invariant: an event never waits for the disk. Events that do not fit
// into the buffer are dropped, counted and logged; the buffer is bounded in events and bytes.
package auditlog

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
)

// Config configures a Log. Names and meanings of the options are upstream's.
type Config struct {
	// PolicyFile is the path of an audit.k8s.io/v1 Policy.
	PolicyFile string
	// Path is the file to write; "-" is standard output, which is not rotated.
	Path string
	// MaxSize is the size in MiB at which the file is rotated (default 100), MaxBackups the number of rotated files
	// retained, and MaxAge their age in days; zero retains all.
	MaxAge, MaxBackups, MaxSize int
	Logger                      *slog.Logger

	out io.WriteCloser // for tests
}

const (
	// mostEvents and mostBytes limit the events waiting for the disk.
	mostEvents = 10_000
	mostBytes  = 32 << 20
	// ownBytes is the approximate size of an event without its objects.
	ownBytes = 2 << 10
	// fullWrite is the number of bytes combined into one write while more events wait; mostKept is the largest buffer
	// retained.
	fullWrite = 64 << 10
	mostKept  = 1 << 20
	// reportEvery is how often dropped events are logged.
	reportEvery = 10 * time.Second
)

// Log is an audit log. It accepts events as soon as it is open; Run writes them.
type Log struct {
	audit.PolicyRuleEvaluator
	cfg     Config
	out     io.WriteCloser
	encoder runtime.Encoder
	events  chan *auditinternal.Event
	bytes   atomic.Int64

	mu       sync.Mutex
	reported time.Time
	dropped  atomic.Int64
	written  atomic.Int64
}

var _ audit.Sink = (*Log)(nil)

// Open reads the policy and checks that the file can be written.
func Open(cfg Config) (*Log, error) {
	p, err := policy.LoadPolicyFromFile(cfg.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("audit-policy-file: %w", err)
	}
	l := &Log{
		PolicyRuleEvaluator: policy.NewPolicyRuleEvaluator(p), cfg: cfg, out: cfg.out,
		encoder: audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), events: make(chan *auditinternal.Event, mostEvents),
	}
	switch {
	case l.out != nil:
	case cfg.Path == "-":
		l.out = os.Stdout
	default:
		if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
			return nil, fmt.Errorf("audit-log-path: %w", err)
		}
		f, err := os.OpenFile(cfg.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("audit-log-path: %w", err)
		}
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("audit-log-path: %w", err)
		}
		l.out = &lumberjack.Logger{Filename: cfg.Path, MaxAge: cfg.MaxAge, MaxBackups: cfg.MaxBackups, MaxSize: cfg.MaxSize}
	}
	return l, nil
}

// Written returns the number of events written.
func (l *Log) Written() int64 { return l.written.Load() }

// Dropped returns the number of events that did not fit into the buffer or could not be written.
func (l *Log) Dropped() int64 { return l.dropped.Load() }

func size(e *auditinternal.Event) int64 {
	n := int64(ownBytes)
	for _, o := range []*runtime.Unknown{e.RequestObject, e.ResponseObject} {
		if o != nil {
			n += int64(len(o.Raw))
		}
	}
	return n
}

// ProcessEvents buffers events or drops them. It never fails: a request is not refused because it cannot be logged.
func (l *Log) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		n := size(e)
		if l.bytes.Add(n) > mostBytes {
			l.bytes.Add(-n)
			l.drop("the buffer is full")
			continue
		}
		// A copy, because the request continues to modify the event.
		select {
		case l.events <- e.DeepCopy():
		default:
			l.bytes.Add(-n)
			l.drop("the buffer is full")
		}
	}
	return true
}

// drop counts a dropped event. It logs at most once in reportEvery, with the total.
func (l *Log) drop(why string) {
	all := l.dropped.Add(1)
	l.mu.Lock()
	now := time.Now()
	report := now.Sub(l.reported) >= reportEvery
	if report {
		l.reported = now
	}
	l.mu.Unlock()
	if report {
		l.cfg.Logger.Warn("audit events dropped", "reason", why, "droppedTotal", all)
	}
}

// Run writes events until ctx is done, and then those in the buffer, for up to two seconds.
func (l *Log) Run(ctx context.Context) error {
	// Only whole lines are written, because the file may be rotated between two writes.
	var lines bytes.Buffer
	flush := func() {
		if _, err := l.out.Write(lines.Bytes()); err != nil {
			l.drop(err.Error())
		}
		lines.Reset()
		if lines.Cap() > mostKept {
			lines = bytes.Buffer{}
		}
	}
	for ctx.Err() == nil {
		select {
		case e := <-l.events:
			l.encode(&lines, e)
			if len(l.events) == 0 || lines.Len() > fullWrite {
				flush()
			}
		case <-ctx.Done():
		}
	}
	for until := time.Now().Add(2 * time.Second); len(l.events) > 0 && time.Now().Before(until); {
		if l.encode(&lines, <-l.events); lines.Len() > fullWrite {
			flush()
		}
	}
	flush()
	if l.out == os.Stdout {
		return nil
	}
	return l.out.Close()
}

func (l *Log) encode(lines *bytes.Buffer, e *auditinternal.Event) {
	l.bytes.Add(-size(e))
	before := lines.Len()
	if err := l.encoder.Encode(e, lines); err != nil { // ends with a newline
		lines.Truncate(before)
		l.drop(err.Error())
		return
	}
	l.written.Add(1)
}
