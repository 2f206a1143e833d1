package auditlog

import (
	"log/slog"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// buffer holds the events that wait for a sink.
type buffer struct {
	sink    string
	log     *slog.Logger
	waiting chan *auditinternal.Event
	bytes   atomic.Int64
	dropped atomic.Int64
	reports bounded.Rate
}

func newBuffer(sink string, events int, log *slog.Logger) *buffer {
	return &buffer{
		sink:    sink,
		log:     log,
		waiting: make(chan *auditinternal.Event, events),
		reports: bounded.Rate{Most: 1, Every: reportEvery},
	}
}

func (b *buffer) name() string { return b.sink }

func (b *buffer) lost() int64 { return b.dropped.Load() }

// size returns the approximate memory of an event in bytes, including its objects and all client-controlled strings.
func size(e *auditinternal.Event) int64 {
	n := ownBytes + len(e.RequestURI) + len(e.UserAgent) + texts(e.SourceIPs) + userSize(&e.User)
	if e.ImpersonatedUser != nil {
		n += userSize(e.ImpersonatedUser)
	}
	for k, v := range e.Annotations {
		n += len(k) + len(v) + perText
	}
	if s := e.ResponseStatus; s != nil {
		n += len(s.Message)
		if s.Details != nil {
			for i := range s.Details.Causes {
				c := &s.Details.Causes[i]
				n += len(c.Message) + len(c.Field) + perText
			}
		}
	}
	for _, o := range []*runtime.Unknown{e.RequestObject, e.ResponseObject} {
		if o != nil {
			n += len(o.Raw)
		}
	}
	return int64(n)
}

func userSize(u *authenticationv1.UserInfo) int {
	n := len(u.Username) + len(u.UID) + texts(u.Groups)
	for k, v := range u.Extra {
		n += len(k) + perText + texts(v)
	}
	return n
}

// perText is the memory of a string besides its bytes.
const perText = 32

func texts(all []string) (n int) {
	for _, s := range all {
		n += len(s) + perText
	}
	return n
}

// add queues or drops an event. All sinks share the event, so it must not be modified afterwards.
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

// took releases the bytes of an event that has left the buffer.
func (b *buffer) took(e *auditinternal.Event) { b.bytes.Add(-size(e)) }

// drop counts dropped events. It logs the total at most once per reportEvery.
func (b *buffer) drop(n int, why string) {
	all := b.dropped.Add(int64(n))
	if _, ok := b.reports.Allow(); ok {
		b.log.Warn("audit events dropped", "sink", b.sink, "reason", bounded.Text(why, longestReason), "droppedTotal", all)
	}
}
