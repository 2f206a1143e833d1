// Package events records Kubernetes Events. Invariant: recording never blocks and never fails the caller; a repeated
// event is counted, not created again; a lost event is counted and logged.
package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	cc "github.com/coracle-dev/coracle/pkg/client"
)

const (
	// backlog limits the events waiting to be written. Above it, events are dropped, but a Warning replaces a waiting
	// event that is not a Warning.
	backlog = 1000
	// remembered limits the written events tracked for counting repeats. Above it, an arbitrary one is evicted, which
	// is created again if it repeats.
	remembered = 1000
	// maxMessage is upstream's limit on a message, in bytes.
	maxMessage = 1024
	// As in upstream's correlator: of events that differ only in their messages, such as a pod's random name in a quota
	// error, mostDistinct are written within similarFor of each other. Further ones are counted in one combined event.
	mostDistinct = 10
	similarFor   = 10 * time.Minute
	combined     = "(combined from similar events): "
	// While the store is full, an event is written again every fullPause, fullTries times in all: the evictions that free
	// the disk have events too. The numbers are upstream's.
	fullPause = 10 * time.Second
	fullTries = 12
	// reportEvery is the minimum interval of log messages about lost events.
	reportEvery = time.Minute
)

var errBacklog = errors.New("too many events are waiting to be written")

// Recorder writes events of one component. It is safe for concurrent use; a nil Recorder records nothing.
type Recorder struct {
	client    cc.Interface
	component string
	host      string
	log       *slog.Logger
	wake      chan struct{} // holds a value when waiting may have grown
	overflow  atomic.Uint64 // events that found the queue full
	refused   atomic.Uint64 // events that could not be written

	mu      sync.Mutex
	waiting []happening // at most backlog, nil when empty: most recorders are idle, and there are dozens

	known     map[happening]known   // used by Run only, like the following fields
	similar   map[happening]similar // the key's message is empty
	stillFull bool                  // an event was lost to a full store, and none was written since
	reported  uint64                // number of lost events that were logged
	lastError error
}

// happening is the identity of an event for counting repeats.
type happening struct {
	by              string // the component
	about           corev1.ObjectReference
	kind            string // Normal or Warning
	reason, message string
	at              time.Time // zero in a map key
}

type known struct {
	name  string
	count int32
}

// similar counts the events that differ only in their messages.
type similar struct {
	distinct int
	last     time.Time
}

// New returns a recorder for a component ("replicaset-controller") on a host, which may be empty. A nil log means
// slog.Default().
func New(c cc.Interface, component, host string, log *slog.Logger) *Recorder {
	if log == nil {
		log = slog.Default()
	}
	return &Recorder{
		client:    c,
		component: component,
		host:      host,
		log:       log,
		wake:      make(chan struct{}, 1),
		known:     map[happening]known{},
		similar:   map[happening]similar{},
	}
}

// Lost returns the number of events that could not be recorded.
func (r *Recorder) Lost() uint64 {
	if r == nil {
		return 0
	}
	return r.overflow.Load() + r.refused.Load()
}

// LostCounter returns the metric of a component's lost events.
func LostCounter(component string, lost func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "coracle_events_lost_total",
		Help:        "Events that could not be recorded because the queue was full or the write failed.",
		ConstLabels: prometheus.Labels{"component": component}},
		func() float64 { return float64(lost()) })
}

// Metrics returns LostCounter for this recorder.
func (r *Recorder) Metrics() prometheus.Collector { return LostCounter(r.component, r.Lost) }

// Event records an event about obj: kind is corev1.EventTypeNormal or EventTypeWarning, reason a CamelCase word, and
// the message is for humans.
func (r *Recorder) Event(obj client.Object, kind, reason, format string, args ...any) {
	if r == nil {
		return
	}
	r.EventBy(r.component, obj, kind, reason, format, args...)
}

// EventBy is Event for a component other than the recorder's.
func (r *Recorder) EventBy(component string, obj client.Object, kind, reason, format string, args ...any) {
	if r == nil {
		return
	}
	ref, err := r.reference(obj)
	if err == nil {
		r.record(component, ref, kind, reason, format, args...)
	}
}

func (r *Recorder) reference(obj client.Object) (corev1.ObjectReference, error) {
	gvk, err := apiutil.GVKForObject(obj, r.client.Scheme())
	if err != nil {
		return corev1.ObjectReference{}, err
	}
	return corev1.ObjectReference{
		APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind,
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}, nil
}

// About is Event for an object reference.
func (r *Recorder) About(ref corev1.ObjectReference, kind, reason, format string, args ...any) {
	if r != nil {
		r.record(r.component, ref, kind, reason, format, args...)
	}
}

func (r *Recorder) record(component string, ref corev1.ObjectReference, kind, reason, format string, args ...any) {
	message := format
	if len(args) > 0 {
		message = fmt.Sprintf(format, args...)
	}
	message = bounded.Text(message, maxMessage)
	r.mu.Lock()
	full := len(r.waiting) >= backlog
	if full && kind == corev1.EventTypeWarning {
		if i := slices.IndexFunc(r.waiting, func(h happening) bool { return h.kind != corev1.EventTypeWarning }); i >= 0 {
			r.waiting = slices.Delete(r.waiting, i, i+1)
			r.overflow.Add(1)
			full = false
		}
	}
	if !full {
		r.waiting = append(r.waiting, happening{
			by:      component,
			about:   ref,
			kind:    kind,
			reason:  reason,
			message: message,
			at:      time.Now(),
		})
	}
	r.mu.Unlock()
	if full {
		r.overflow.Add(1)
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Recorder) next() (h happening, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return h, false
	}
	h, r.waiting[0] = r.waiting[0], happening{}
	if r.waiting = r.waiting[1:]; len(r.waiting) == 0 {
		r.waiting = nil
	}
	return h, true
}

// Run writes recorded events until ctx is done. It logs lost events immediately, and then at most once a minute.
func (r *Recorder) Run(ctx context.Context) {
	var quiet <-chan time.Time // not nil until the next report may be logged
	for {
		h, ok := r.next()
		if ok && ctx.Err() == nil {
			if err := r.write(ctx, h); err != nil && ctx.Err() == nil {
				r.refused.Add(1)
				r.lastError = err
			}
		} else {
			select {
			case <-ctx.Done():
				r.report()
				return
			case <-quiet:
				quiet = nil
			case <-r.wake:
			}
		}
		if quiet == nil && r.report() {
			quiet = time.After(reportEvery)
		}
	}
}

// report logs the events lost since the last report, and returns whether there were any.
func (r *Recorder) report() bool {
	lost := r.Lost()
	if lost == r.reported {
		return false
	}
	err := r.lastError
	if err == nil {
		err = errBacklog
	}
	r.log.Warn("could not record events", "component", r.component, "lost", lost-r.reported, "lostTotal", lost, "error",
		err)
	r.reported, r.lastError = lost, nil
	return true
}

// write writes an event. It returns an error if the event is lost, except in a terminating namespace.
func (r *Recorder) write(ctx context.Context, h happening) error {
	at := metav1.NewTime(h.at)
	key := h
	key.at, key.about.ResourceVersion = time.Time{}, ""
	namespace := cmp.Or(h.about.Namespace, metav1.NamespaceDefault)
	was, seen := r.known[key]
	if !seen && r.combine(key, h.at) {
		key.message, h.message = combined, bounded.Text(combined+h.message, maxMessage)
		was, seen = r.known[key]
	}
	if seen {
		was.count++
		patch, _ := json.Marshal(map[string]any{"count": was.count, "lastTimestamp": at, "message": h.message})
		old := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: was.name}}
		err := r.withSpace(ctx, func() error {
			return r.client.Patch(ctx, old, client.RawPatch(types.MergePatchType, patch))
		})
		if err == nil {
			r.remember(key, was)
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	name := h.about.Name + "." + strconv.FormatInt(h.at.UnixNano(), 16)
	if len(name) > 253 {
		name = name[len(name)-253:]
	}
	err := r.withSpace(ctx, func() error {
		return r.client.Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
			InvolvedObject: h.about, Reason: h.reason, Message: h.message, Type: h.kind, Count: 1,
			FirstTimestamp: at, LastTimestamp: at,
			Source:              corev1.EventSource{Component: h.by, Host: r.host},
			ReportingController: h.by, ReportingInstance: r.host,
		})
	})
	switch {
	case err == nil:
		r.remember(key, known{name: name, count: 1})
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return nil
	}
	return err
}

// withSpace repeats a write while the store is full. After an event that was lost to it, the next ones are tried once,
// so that they do not pile up.
func (r *Recorder) withSpace(ctx context.Context, write func() error) error {
	for try := 1; ; try++ {
		err := write()
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != http.StatusInsufficientStorage {
			r.stillFull = false
			return err
		}
		if try == fullTries {
			r.stillFull = true
		}
		if r.stillFull || !backoff.Sleep(ctx, fullPause) {
			return err
		}
	}
}

func (r *Recorder) remember(key happening, k known) { keep(r.known, key, k) }

// combine counts an event with a new message, and reports whether there were more than mostDistinct similar events.
func (r *Recorder) combine(key happening, at time.Time) bool {
	key.message = ""
	s := r.similar[key]
	if at.Sub(s.last) > similarFor {
		s.distinct = 0
	}
	s.distinct, s.last = min(s.distinct+1, mostDistinct+1), at
	keep(r.similar, key, s)
	return s.distinct > mostDistinct
}

// keep adds to a map of at most remembered entries.
func keep[V any](m map[happening]V, key happening, value V) {
	if _, ok := m[key]; !ok && len(m) >= remembered {
		for other := range m {
			delete(m, other)
			break
		}
	}
	m[key] = value
}
