package engine

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/client/events"
)

const (
	// mostFailing bounds the failing objects recorded per reconciler; further failures are only counted.
	mostFailing = 1000
	// shownFailing is how many of them a Report lists.
	shownFailing = 10
	// maxError bounds an error's text, in bytes.
	maxError = 1024
)

// Report is the declaration and state of a reconciler.
type Report struct {
	Name     string `json:"name"`
	Identity string `json:"identity"`
	// Watches and Reads are kinds such as "Deployment.apps". Writes are kinds with their parts: "Pod: create, delete".
	Watches []string `json:"watches"`
	Reads   []string `json:"reads"`
	Writes  []string `json:"writes"`
	// Synced is set once its watches have synced.
	Synced bool `json:"synced"`
	// Queued objects wait for a worker, Delayed ones for a time. At most Workers objects are Running.
	Queued  int `json:"queued"`
	Delayed int `json:"delayed"`
	Running int `json:"running"`
	Workers int `json:"workers"`
	// Failing objects failed in their last reconcile and are in back-off. Failures lists those that have failed the
	// longest.
	Failing  int       `json:"failing"`
	Failures []Failure `json:"failures,omitempty"`
	// Crashes counts restarts of the reconciler; LastCrash is the latest cause.
	Crashes   uint64 `json:"crashes"`
	LastCrash string `json:"lastCrash,omitempty"`
}

// Failure is an object that could not be reconciled.
type Failure struct {
	Object   string    `json:"object"`
	Since    time.Time `json:"since"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	// Refused means that admission or validation, such as a quota, rejected the write. The object's owner must change
	// it; the reconciler works.
	Refused bool `json:"refused,omitempty"`
}

// refused reports whether err only contains rejections of requests for an object, other than by the authorizer.
func refused(err error) bool {
	switch e := err.(type) { //nolint:errorlint // each level of the tree decides for itself
	case nil:
		return false
	case *apierrors.StatusError:
		return apierrors.IsInvalid(e) ||
			apierrors.IsForbidden(e) && !strings.Contains(e.ErrStatus.Message, `User "`)
	case interface{ Unwrap() error }:
		return refused(e.Unwrap())
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !refused(err) })
	}
	return false
}

// Monitor tracks reconcilers across restarts, for metrics and reports.
type Monitor struct {
	metrics *metrics
	reg     prometheus.Registerer

	mu        sync.Mutex
	observers []*observer
}

// NewMonitor creates a Monitor. reg registers its metrics; it may be nil.
func NewMonitor(reg prometheus.Registerer) *Monitor {
	m := &Monitor{reg: reg}
	m.metrics = newMetrics(reg)
	if reg != nil {
		reg.MustRegister(collector{m})
	}
	return m
}

// Report describes all reconcilers, in the order in which they were started.
func (m *Monitor) Report() []Report {
	all := make([]Report, 0, 16)
	for _, o := range m.all() {
		all = append(all, o.report())
	}
	return all
}

func (m *Monitor) all() []*observer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.observers)
}

func (m *Monitor) observe(l *life) *observer {
	r := l.r
	o := &observer{r: r, handles: m.metrics.of(r.Name, max(r.Workers, 1)), failing: map[Request]*Failure{}}
	for _, w := range r.Watches {
		if gk, err := l.declared.kind(w.Object); err == nil {
			o.watches = append(o.watches, gk.String())
		}
	}
	for _, obj := range r.Reads {
		if gk, err := l.declared.kind(obj); err == nil {
			o.reads = append(o.reads, gk.String())
		}
	}
	for _, w := range r.Writes {
		kind := "any kind"
		if w.Object != nil {
			if gk, err := l.declared.kind(w.Object); err == nil {
				kind = gk.String()
			}
		}
		parts := make([]string, len(w.Parts))
		for i, p := range w.Parts {
			parts[i] = string(p)
		}
		o.writes = append(o.writes, kind+": "+strings.Join(parts, ", "))
	}
	for _, list := range [][]string{o.watches, o.reads, o.writes} {
		slices.Sort(list)
	}
	o.watches, o.reads = slices.Compact(o.watches), slices.Compact(o.reads)
	if m.reg != nil {
		m.reg.MustRegister(events.LostCounter(r.Name+"-controller", o.lost))
		if r.Metrics != nil {
			m.reg.MustRegister(r.Metrics)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observers = append(m.observers, o)
	return o
}

type observer struct {
	r                      *Reconciler
	handles                handles
	watches, reads, writes []string
	synced                 atomic.Bool
	running                atomic.Int64

	mu        sync.Mutex
	queue     *queue // of the current start
	recorder  *events.Recorder
	lostSoFar uint64 // of the recorders before it
	failing   map[Request]*Failure
	crashes   uint64
	lastCrash string
}

func (o *observer) starts(q *queue, r *events.Recorder) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lostSoFar += o.recorder.Lost()
	o.queue, o.recorder = q, r
	clear(o.failing)
}

func (o *observer) lost() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lostSoFar + o.recorder.Lost()
}

func (o *observer) crashed(err error) {
	o.handles.crashes.Inc()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.crashes++
	o.lastCrash = bounded.Text(err.Error(), maxError)
}

// begin records the start of a call; the returned function records its result.
func (o *observer) begin(req Request) func(res Result, err error, panicked bool) {
	began := time.Now()
	o.running.Add(1)
	return func(res Result, err error, panicked bool) {
		o.running.Add(-1)
		o.handles.time.Observe(time.Since(began).Seconds())
		switch {
		case panicked:
			o.handles.panics.Inc()
			fallthrough
		case err != nil:
			o.handles.results.failed.Inc()
			o.handles.errors.Inc()
		case res.RequeueAfter > 0:
			o.handles.results.after.Inc()
		default:
			o.handles.results.success.Inc()
		}
		text := ""
		if panicked {
			text = "panic: the log has its stack"
		} else if err != nil {
			text = bounded.Text(err.Error(), maxError)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		f := o.failing[req]
		switch {
		case text == "":
			delete(o.failing, req)
		case f != nil:
			f.Attempts++
			f.Error, f.Refused = text, refused(err)
		case len(o.failing) < mostFailing:
			o.failing[req] = &Failure{
				Object: strings.TrimPrefix(req.String(), "/"), Since: began, Attempts: 1, Error: text, Refused: refused(err),
			}
		}
	}
}

func (o *observer) report() Report {
	s := Report{
		Name: o.r.Name, Identity: o.r.Identity(), Watches: o.watches, Reads: o.reads, Writes: o.writes,
		Synced: o.synced.Load(), Running: int(o.running.Load()), Workers: max(o.r.Workers, 1),
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s.Crashes, s.LastCrash, s.Failing = o.crashes, o.lastCrash, len(o.failing)
	for _, f := range o.failing {
		s.Failures = append(s.Failures, *f)
	}
	slices.SortFunc(s.Failures, func(a, b Failure) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Object, b.Object))
	})
	s.Failures = s.Failures[:min(len(s.Failures), shownFailing)]
	if o.queue != nil {
		s.Queued, s.Delayed = o.queue.Len(), o.queue.waiting()
	}
	return s
}
