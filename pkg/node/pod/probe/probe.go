// Package probe runs the liveness, readiness and startup probes of containers: exec, HTTP, TCP and gRPC.
//
// Invariant: each probe of a running container has one goroutine, which ends with the container.
package probe

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Target is a running container and how to reach it.
type Target struct {
	UID         types.UID
	Container   *corev1.Container
	ContainerID string
	PodIP       string
	// HostNetwork means that the pod is in the host's network.
	HostNetwork bool
	StartedAt   time.Time
	// Started and Ready are the last known state from the pod's status, kept over a restart of the agent.
	Started, Ready bool
	// Ending means that the container or its pod is being stopped: only the readiness probe runs.
	Ending bool
	// Expand replaces variables in an exec probe's command; nil means none.
	Expand func(command []string) ([]string, error)
	// Event records an event on the container.
	Event func(kind, reason, message string)
}

func (t *Target) warn(reason, message string) {
	if t.Event != nil {
		t.Event(corev1.EventTypeWarning, reason, message)
	}
}

// Result is the result of a container's probes.
type Result struct {
	Started, Ready bool
	// Failed means that a liveness or startup probe reached its failure threshold. Why names the probe, and Grace is
	// the probe's grace period in seconds, if set.
	Failed bool
	Why    string
	Grace  *int64
}

// Config configures a Manager.
type Config struct {
	Runtime runtime.Runtime
	// Changed is called from a probe's goroutine when a container's Result changed.
	Changed func(types.UID)
	Client  *Client
	Logger  *slog.Logger
}

// Manager runs the probes. Safe for concurrent use.
type Manager struct {
	runtime runtime.Runtime
	changed func(types.UID)
	client  *Client

	mu      sync.Mutex
	workers map[string]*worker // by container ID
	wg      sync.WaitGroup
	guard   run.Guard
}

type worker struct {
	target  Target
	cancel  context.CancelFunc // stops all probes
	end     context.CancelFunc // stops the liveness and startup probes
	ended   bool
	started chan struct{} // closed when the startup probe succeeded
	result  Result
	counts  map[string]*[2]atomic.Uint64 // by kind of probe: failures and successes
}

// New returns a Manager. Its goroutines end with Stop, StopAll or their context.
func New(c Config) *Manager {
	return &Manager{runtime: c.Runtime, changed: c.Changed, client: c.Client, workers: map[string]*worker{},
		guard: run.Guard{Log: c.Logger, Component: "probes"}}
}

// Watch starts the probes of a container unless they run already, and returns the current result.
func (m *Manager) Watch(ctx context.Context, t Target) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[t.ContainerID]; w != nil {
		if t.Ending {
			m.endLocked(w)
		}
		return w.result
	}
	c := t.Container
	r := Result{Started: c.StartupProbe == nil || t.Started}
	r.Ready = r.Started && (c.ReadinessProbe == nil || t.Ready)
	if c.StartupProbe == nil && c.ReadinessProbe == nil && c.LivenessProbe == nil {
		return r
	}
	ctx, cancel := context.WithCancel(ctx)
	life, end := context.WithCancel(ctx)
	w := &worker{target: t, cancel: cancel, end: end, started: make(chan struct{}), result: r,
		counts: map[string]*[2]atomic.Uint64{"Startup": {}, "Liveness": {}, "Readiness": {}}}
	m.workers[t.ContainerID] = w
	if t.Ending {
		m.endLocked(w)
	}
	if r.Started {
		close(w.started)
	}
	run := func(ctx context.Context, p *corev1.Probe, f func(bool)) {
		if p != nil {
			m.wg.Go(func() { m.loop(ctx, w, p, f) })
		}
	}
	if !r.Started {
		run(life, c.StartupProbe, func(ok bool) { m.startup(w, ok) })
	}
	run(life, c.LivenessProbe, func(ok bool) {
		if !ok {
			m.set(w, func(r *Result) {
				r.Failed, r.Why, r.Grace = true, "liveness probe", c.LivenessProbe.TerminationGracePeriodSeconds
			})
		}
	})
	run(ctx, c.ReadinessProbe, func(ok bool) { m.set(w, func(r *Result) { r.Ready = ok }) })
	return r
}

func (m *Manager) startup(w *worker, ok bool) {
	c := w.target.Container
	if !ok {
		m.set(w, func(r *Result) {
			r.Failed, r.Why, r.Grace = true, "startup probe", c.StartupProbe.TerminationGracePeriodSeconds
		})
		return
	}
	m.set(w, func(r *Result) { r.Started, r.Ready = true, c.ReadinessProbe == nil })
	close(w.started)
}

func (m *Manager) set(w *worker, f func(*Result)) {
	m.mu.Lock()
	before := w.result
	f(&w.result)
	if w.ended { // ignore a liveness probe that was in flight
		w.result.Failed, w.result.Why, w.result.Grace = false, "", nil
	}
	differs := before.Started != w.result.Started || before.Ready != w.result.Ready || before.Failed != w.result.Failed
	m.mu.Unlock()
	if differs {
		m.changed(w.target.UID)
	}
}

const (
	// firstPause is the interval after the first failed readiness or startup probe. It doubles with each failure.
	firstPause = 50 * time.Millisecond
	// In a container's first seconds, probes without a process are at most mostPause apart: many begin to listen then.
	earlyTime = 3 * time.Second
	mostPause = 200 * time.Millisecond
)

// eager schedules a new container's probes more often than its period until the first success, because most containers
// are ready much earlier. Failures do not count in that time.
type eager struct {
	since, until time.Time
	pause        time.Duration
	connects     bool // the probe starts no process
}

func newEager(p *corev1.Probe, since time.Time) *eager {
	e := &eager{since: since, pause: firstPause, connects: p.Exec == nil}
	period := time.Duration(max(p.PeriodSeconds, 1)) * time.Second
	if e.connects {
		period = max(period, earlyTime)
	}
	e.until = since.Add(period)
	return e
}

// next returns the pause before the next probe, or false when failures count from now on.
func (e *eager) next(now time.Time) (time.Duration, bool) {
	pause := e.pause
	if !now.Add(pause).Before(e.until) {
		return 0, false
	}
	e.pause *= 2
	if e.connects && now.Sub(e.since) < earlyTime {
		e.pause = min(e.pause, mostPause)
	}
	return pause, true
}

// loop runs one probe until its context is done, a startup probe succeeds, or a startup or liveness probe fails.
func (m *Manager) loop(ctx context.Context, w *worker, p *corev1.Probe, report func(ok bool)) {
	c := w.target.Container
	kind := "Startup"
	switch p {
	case c.LivenessProbe:
		kind = "Liveness"
	case c.ReadinessProbe:
		kind = "Readiness"
	}
	if kind != "Startup" {
		select {
		case <-w.started:
		case <-ctx.Done():
			return
		}
	}
	period := time.Duration(max(p.PeriodSeconds, 1)) * time.Second
	wait := time.Until(w.target.StartedAt.Add(time.Duration(p.InitialDelaySeconds) * time.Second))
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	good, bad := 0, 0
	var first *eager
	if kind != "Liveness" {
		first = newEager(p, time.Now().Add(max(wait, 0)))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		var warning string
		var err error
		panicked := m.guard.Do("probe", func() { warning, err = m.do(ctx, p, w.target) }, "container", w.target.ContainerID)
		if ctx.Err() != nil {
			return
		}
		if panicked != nil || errors.As(err, new(errored)) { // says nothing about the container
			if panicked == nil {
				w.target.warn("Unhealthy", kind+" probe errored and resulted in unknown state: "+err.Error())
			}
			timer.Reset(max(period-time.Since(began), 0))
			continue
		}
		if err == nil {
			w.counts[kind][1].Add(1)
		} else {
			w.counts[kind][0].Add(1)
		}
		if err != nil && first != nil {
			if pause, ok := first.next(time.Now()); ok {
				timer.Reset(pause)
				continue
			}
		}
		if first = nil; err == nil {
			good, bad = good+1, 0
			if warning != "" {
				w.target.warn("ProbeWarning", kind+" probe warning: "+warning)
			}
			if good >= int(max(p.SuccessThreshold, 1)) {
				report(true)
				if kind == "Startup" {
					return
				}
			}
		} else {
			good, bad = 0, bad+1
			w.target.warn("Unhealthy", kind+" probe failed: "+err.Error())
			if bad >= int(max(p.FailureThreshold, 1)) {
				report(false)
				if kind != "Readiness" {
					return
				}
			}
		}
		timer.Reset(max(period-time.Since(began), 0))
	}
}

// Metrics counts the probes that panicked.
func (m *Manager) Metrics() prometheus.Collector { return m.guard.Metrics() }

// Count holds the numbers of failures and successes of a container's probe.
type Count struct {
	Pod                 types.UID
	Container, Kind     string // Kind is Startup, Liveness or Readiness
	Failures, Successes uint64
}

// Counts returns the counts of all current probes that have run at least once.
func (m *Manager) Counts() []Count {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Count
	for _, w := range m.workers {
		for kind, n := range w.counts {
			c := Count{
				Pod:       w.target.UID,
				Container: w.target.Container.Name,
				Kind:      kind,
				Failures:  n[0].Load(),
				Successes: n[1].Load(),
			}
			if c.Failures+c.Successes > 0 {
				all = append(all, c)
			}
		}
	}
	return all
}

// End stops the liveness and startup probes of a container. Its readiness probe runs until Stop.
func (m *Manager) End(containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[containerID]; w != nil {
		m.endLocked(w)
	}
}

func (m *Manager) endLocked(w *worker) {
	w.end()
	w.ended = true
	w.result.Failed, w.result.Why, w.result.Grace = false, "", nil
}

// Stop stops all probes of a container.
func (m *Manager) Stop(containerID string) {
	m.mu.Lock()
	w := m.workers[containerID]
	delete(m.workers, containerID)
	m.mu.Unlock()
	if w != nil {
		w.cancel()
	}
}

// StopAll stops all probes and waits for them.
func (m *Manager) StopAll() {
	m.mu.Lock()
	for id, w := range m.workers {
		w.cancel()
		delete(m.workers, id)
	}
	m.mu.Unlock()
	m.wg.Wait()
}
