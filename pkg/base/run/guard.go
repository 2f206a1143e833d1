package run

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Limits of a Panic's stack and value, in bytes.
const (
	maxStack = 16 << 10
	maxPanic = 1 << 10
)

// Panic is the error of a unit of work that panicked.
type Panic struct {
	// Value is the panic's value, as text of at most 1 KiB.
	Value string
	// Stack is the stack of the goroutine, of at most 16 KiB.
	Stack string
}

func (p *Panic) Error() string { return "panic: " + p.Value }

// Guard recovers from panics in units of work (a pod's sync, a packet, an event), so that they do not end the process
// and with it the control plane. It cannot recover from fatal errors of the Go runtime: stack overflow, concurrent map
// writes, out of memory. A zero or nil Guard is ready to use. It is safe for concurrent use.
type Guard struct {
	// Log is slog.Default() if nil.
	Log *slog.Logger
	// Component is an attribute of log messages.
	Component string

	mu     sync.Mutex
	panics uint64
	silent uint64 // since the last log message
	logged time.Time
}

// logEvery is the minimum interval between log messages of one Guard. Panics in between are only counted.
const logEvery = time.Second

// Do runs one unit of work. It counts a panic, logs it with its stack, and returns it as a *Panic; the caller decides
// when to retry. The attributes are added to the log message, as in slog.
func (g *Guard) Do(unit string, f func(), attributes ...any) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &Panic{Value: bounded.Text(fmt.Sprint(v), maxPanic), Stack: bounded.Text(string(debug.Stack()), maxStack)}
			g.report(unit, p, attributes)
			err = p
		}
	}()
	f()
	return nil
}

func (g *Guard) report(unit string, p *Panic, attributes []any) {
	log, component, silent := slog.Default(), "", uint64(0)
	if g != nil {
		g.mu.Lock()
		g.panics++
		if !g.logged.IsZero() && time.Since(g.logged) < logEvery {
			g.silent++
			g.mu.Unlock()
			return
		}
		g.logged, silent, g.silent = time.Now(), g.silent, 0
		g.mu.Unlock()
		component = g.Component
		if g.Log != nil {
			log = g.Log
		}
	}
	log.Error("recovered from a panic",
		append([]any{"component", component, "unit", unit, "panic", p.Value, "unlogged", silent, "stack", p.Stack},
			attributes...)...)
}

// Panics returns the number of units of work that panicked.
func (g *Guard) Panics() uint64 {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.panics
}

// Metrics returns the metric of recovered panics.
func (g *Guard) Metrics() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "coracle_panics_recovered_total",
		Help:        "Units of work that panicked, by component. The log has their stacks.",
		ConstLabels: prometheus.Labels{"component": g.Component}},
		func() float64 { return float64(g.Panics()) })
}

// Loop's first and longest pause.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 30 * time.Second
)

// Loop runs a loop until ctx is done. If it panics, it is restarted with a back-off that doubles from 100 ms to 30 s,
// and is reset after the loop ran for longer than 30 s.
func (g *Guard) Loop(ctx context.Context, unit string, loop func(context.Context)) {
	again := backoff.Backoff{First: firstPause, Most: mostPause}
	for {
		began := time.Now()
		if g.Do(unit, func() { loop(ctx) }) == nil {
			return
		}
		again.ResetAfter(began)
		if !again.Wait(ctx) {
			return
		}
	}
}
