// Package shutdown ends a node's pods before its machine shuts down, like the kubelet (KEP-2000, KEP-2712). It holds
// a delay inhibitor of systemd-logind. When logind announces a shutdown, it ends pods in the order of their
// priorities and then releases the inhibitor.
//
// Its invariant: it acts only on logind's state. A signal merely triggers a query of the state, so a lost or forged
// signal has no effect.
package shutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

// Logind is a connection to systemd-logind. Calls fail when their context is done.
type Logind interface {
	// Changed receives when State may have changed.
	Changed() <-chan struct{}
	// Lost is closed when the connection has ended.
	Lost() <-chan struct{}
	// State queries logind. It returns ErrAbsent if logind does not run; Changed receives when logind starts.
	State(ctx context.Context) (State, error)
	// Inhibit delays shutdowns until the result is closed. It returns ErrInProgress if a shutdown has begun.
	Inhibit(ctx context.Context) (io.Closer, error)
	Close()
}

// State is logind's state.
type State struct {
	// Instance identifies logind's process. It changes when logind restarts on the same connection.
	Instance string
	// ShuttingDown means that a shutdown has begun: logind waits for inhibitors, or executes it.
	ShuttingDown bool
	// Delay is the maximum time that logind waits for inhibitors.
	Delay time.Duration
}

var (
	// ErrAbsent means that logind does not run.
	ErrAbsent = errors.New("systemd-logind does not run")
	// ErrInProgress means that it is too late for an inhibitor.
	ErrInProgress = errors.New("a shutdown is in progress")
)

// Pods are the node's pods; pod.Manager implements it.
type Pods interface {
	// Pods returns copies of all pods, including pods that have ended.
	Pods() []*corev1.Pod
	// Terminate ends a pod within its grace period, and no later than by. The channel is closed once none of its
	// processes runs and its resources are released; it is nil if the pod does not exist.
	Terminate(uid types.UID, by time.Time) <-chan struct{}
	// Flush tries once to write the pod statuses that the API does not have yet.
	Flush(ctx context.Context)
}

// Config configures a Manager. All fields are required.
type Config struct {
	// Periods are ordered by priority.
	Periods []config.ShutdownPeriod
	// Connect connects to logind. If the first call returns fs.ErrNotExist, this machine has no system bus.
	Connect func(ctx context.Context) (Logind, error)
	// Await returns when a machine without a system bus may have one.
	Await func(ctx context.Context) error
	Pods  Pods
	// Known is closed when the node's pods are known.
	Known <-chan struct{}
	// Changed is called when ShuttingDown has changed.
	Changed func(shuttingDown bool)
	// Event records an event on the node.
	Event func(kind, reason, message string)
	// File stores the times of the last shutdown. Metrics exposes them.
	File    string
	Metrics prometheus.Registerer
	Logger  *slog.Logger
}

const (
	// patience is how long logind may take to answer.
	patience = 5 * time.Second
	// knownPatience is how long a shutdown waits until the pods are known, flushPatience until their statuses are
	// written.
	knownPatience = time.Second
	flushPatience = 2 * time.Second
	// The pause before connecting to logind again, doubled after each failure.
	firstPause = time.Second
	maxPause   = time.Minute
)

// Manager delays shutdowns of the machine until the node's pods have ended.
type Manager struct {
	c       Config
	guard   run.Guard
	looked  chan struct{}
	settle  func() // closes looked
	times   *times
	down    atomic.Bool
	working sync.WaitGroup

	// Only Run uses these.
	stop     context.CancelFunc // cancels the shutdown in progress; nil without one
	stopped  <-chan struct{}    // closed when that has ended
	heldBy   string             // logind's instance that granted the inhibitor; "" if none on this connection did
	logged   time.Duration      // the last logged Delay
	failures int                // consecutive failures

	mu        sync.Mutex
	inhibitor io.Closer // nil if none is held
}

// New returns a Manager.
func New(c Config) *Manager {
	looked := make(chan struct{})
	return &Manager{
		c: c, guard: run.Guard{Log: c.Logger, Component: "shutdown"}, looked: looked,
		settle: sync.OnceFunc(func() { close(looked) }),
		times:  newTimes(c.File, c.Logger, c.Metrics), logged: -1,
	}
}

// ShuttingDown reports whether the machine is shutting down.
func (m *Manager) ShuttingDown() bool { return m.down.Load() }

// Looked is closed once Run knows ShuttingDown, or knows that it cannot find out now.
func (m *Manager) Looked() <-chan struct{} { return m.looked }

// Run runs until ctx is done. On a machine without a system bus it waits for one. It releases the inhibitor when it
// returns.
func (m *Manager) Run(ctx context.Context) {
	defer m.settle()
	defer m.release()
	defer m.working.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.stop, m.stopped = nil, nil // after a panic
	for first := true; ; first = false {
		err := m.session(ctx)
		m.settle()
		switch {
		case ctx.Err() != nil:
			return
		case first && errors.Is(err, fs.ErrNotExist):
			m.c.Logger.Info("there is no system bus: until there is one, shutdowns of the machine do not wait for pods")
			if err := m.c.Await(ctx); err != nil {
				if ctx.Err() == nil {
					m.c.Logger.Warn("could not wait for a system bus, shutdowns of the machine do not wait for pods", "error", err)
				}
				return
			}
			continue
		case err != nil && m.failures == 0:
			m.c.Logger.Warn("could not follow shutdowns of the machine, retrying", "error", err)
		case err != nil:
			m.c.Logger.Debug("could not follow shutdowns of the machine, retrying", "error", err)
		}
		pause := time.NewTimer(min(firstPause<<min(m.failures, 10), maxPause))
		m.failures++
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

// session follows logind on one connection until that is lost.
func (m *Manager) session(ctx context.Context) error {
	connecting, cancel := context.WithTimeout(ctx, patience)
	l, err := m.c.Connect(connecting)
	cancel()
	if err != nil {
		return err
	}
	defer l.Close()
	m.heldBy = "" // names of instances are valid only on one bus
	for {
		asking, cancel := context.WithTimeout(ctx, patience)
		err := m.look(asking, ctx, l)
		cancel()
		if err != nil {
			return err
		}
		if m.failures > 0 {
			m.c.Logger.Info("following shutdowns of the machine again")
		}
		m.failures = 0
		m.settle()
		select {
		case <-l.Changed():
		case <-l.Lost():
			m.c.Logger.Info("the connection to the system bus was lost, connecting again")
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// look queries logind and acts on its state. A shutdown that it begins lasts until ctx is done.
func (m *Manager) look(asking, ctx context.Context, l Logind) error {
	s, err := l.State(asking)
	if errors.Is(err, ErrAbsent) {
		m.c.Logger.Debug("systemd-logind does not run, shutdowns of the machine do not wait for pods")
		m.heldBy = ""
		return nil
	}
	if err != nil {
		return err
	}
	m.warnIfShort(s.Delay)
	switch {
	case s.ShuttingDown && m.stop == nil:
		m.begin(ctx, s.Delay)
	case !s.ShuttingDown && m.ShuttingDown():
		m.cancel()
	}
	if s.ShuttingDown || m.heldBy == s.Instance {
		return nil
	}
	inhibitor, err := l.Inhibit(asking)
	if errors.Is(err, ErrInProgress) {
		return nil // Changed triggers another look
	}
	if err != nil {
		return err
	}
	m.hold(inhibitor)
	m.heldBy = s.Instance
	m.c.Logger.Debug("shutdowns of the machine wait for pods", "delay", min(s.Delay, total(m.c.Periods)))
	return nil
}

// warnIfShort logs a warning, on each change, if logind's delay is shorter than the configured periods.
func (m *Manager) warnIfShort(delay time.Duration) {
	want := total(m.c.Periods)
	if delay == m.logged || delay >= want {
		m.logged = delay
		return
	}
	m.logged = delay
	m.c.Logger.Warn(fmt.Sprintf("systemd-logind delays a shutdown by less than is configured: pods have a share of "+
		"that. To change it, write [Login] and "+
		"InhibitDelayMaxSec=%d to /etc/systemd/logind.conf.d/coracle.conf, and run systemctl kill --signal=HUP "+
		"systemd-logind", int64((want+time.Second-1)/time.Second)),
		"delay", delay, "configured", want)
}

func (m *Manager) hold(inhibitor io.Closer) {
	m.mu.Lock()
	old := m.inhibitor
	m.inhibitor = inhibitor
	m.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
}

func (m *Manager) release() { m.hold(nil) }

func (m *Manager) begin(ctx context.Context, delay time.Duration) {
	began := time.Now()
	m.c.Logger.Info("the machine shuts down, ending pods", "delay", delay)
	m.set(true, "The machine is shutting down, pods are terminated")
	m.times.began()
	ctx, m.stop = context.WithCancel(ctx)
	done := make(chan struct{})
	m.stopped = done
	m.working.Go(func() {
		defer close(done)
		_ = m.guard.Do("shutdown", func() { m.end(ctx, began, delay) })
		m.times.ended()
		if ctx.Err() == nil {
			m.c.Logger.Info("pods have ended, the machine may shut down", "after", time.Since(began).Round(time.Millisecond))
			m.release()
		}
	})
}

// cancel returns to normal. Pods that are already terminating end; the others keep running.
func (m *Manager) cancel() {
	if m.stop != nil {
		m.stop()
		<-m.stopped
	}
	m.stop, m.stopped, m.heldBy = nil, nil, ""
	m.c.Logger.Info("the shutdown of the machine was cancelled")
	m.set(false, "The shutdown of the machine was cancelled")
}

func (m *Manager) set(down bool, event string) {
	m.down.Store(down)
	m.c.Changed(down)
	m.c.Event(corev1.EventTypeNormal, "NodeShutdown", event)
}

func (m *Manager) end(ctx context.Context, began time.Time, delay time.Duration) {
	known, cancel := context.WithTimeout(ctx, knownPatience)
	wait(known, m.c.Known)
	cancel()
	periods := m.c.Periods
	if delay > 0 { // with a delay of 0 logind does not wait, and the time left is unknown
		periods = within(periods, max(delay-time.Since(began), 0))
	}
	until := time.Now().Add(total(periods))
	for _, g := range groups(periods, m.c.Pods.Pods()) {
		if ctx.Err() != nil {
			return
		}
		m.endGroup(ctx, g)
	}
	ctx, cancel = context.WithTimeout(ctx, min(flushPatience, time.Until(until)))
	defer cancel()
	m.c.Pods.Flush(ctx)
}

func (m *Manager) endGroup(ctx context.Context, g group) {
	period, cancel := context.WithTimeout(ctx, g.period)
	defer cancel()
	by := time.Now().Add(g.period - reserve(g.period))
	ended := make([]<-chan struct{}, len(g.pods))
	for i, p := range g.pods {
		ended[i] = m.c.Pods.Terminate(p.UID, by)
	}
	for i, done := range ended {
		if done != nil && !wait(period, done) {
			if ctx.Err() == nil {
				m.c.Logger.Warn("a pod did not end within its group's shutdown period", "pod",
					g.pods[i].Namespace+"/"+g.pods[i].Name, "period", g.period)
			}
			return
		}
	}
}

// wait reports whether done was closed before ctx was done.
func wait(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
