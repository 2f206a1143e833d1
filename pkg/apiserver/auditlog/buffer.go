package auditlog

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
)

// buffer has the events that wait for a sink.
type buffer struct {
	sink    string
	log     *slog.Logger
	waiting chan *auditinternal.Event
	bytes   atomic.Int64
	dropped atomic.Int64

	mu       sync.Mutex
	reported time.Time
}

func newBuffer(sink string, events int, log *slog.Logger) buffer {
	return buffer{sink: sink, log: log, waiting: make(chan *auditinternal.Event, events)}
}

func (b *buffer) name() string { return b.sink }

func (b *buffer) lost() int64 { return b.dropped.Load() }

func size(e *auditinternal.Event) int64 {
	n := int64(ownBytes)
	for _, o := range []*runtime.Unknown{e.RequestObject, e.ResponseObject} {
		if o != nil {
			n += int64(len(o.Raw))
		}
	}
	return n
}

// add takes an event, which all sinks share and nobody may change any more, or drops it.
func (b *buffer) add(e *auditinternal.Event) {
	n := size(e)
	if b.bytes.Add(n) > mostBytes {
		b.bytes.Add(-n)
		b.drop(1, "the buffer is full")
		return
	}
	select {
	case b.waiting <- e:
	default:
		b.bytes.Add(-n)
		b.drop(1, "the buffer is full")
	}
}

// took makes room for what an event has taken.
func (b *buffer) took(e *auditinternal.Event) { b.bytes.Add(-size(e)) }

// drop counts dropped events. It logs at most once in reportEvery, with the total.
func (b *buffer) drop(n int, why string) {
	all := b.dropped.Add(int64(n))
	b.mu.Lock()
	now := time.Now()
	report := now.Sub(b.reported) >= reportEvery
	if report {
		b.reported = now
	}
	b.mu.Unlock()
	if report {
		b.log.Warn("audit events dropped", "sink", b.sink, "reason", why, "droppedTotal", all)
	}
}
