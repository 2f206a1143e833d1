package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/singleflight"
)

const checkTime = 2 * time.Second

// health serves /healthz, /livez and /readyz with upstream's response texts.
type health struct {
	checks []Check
	// ending is done when the server stops. It cancels running checks.
	ending  context.Context //nolint:containedctx // the server's own life
	log     *slog.Logger
	flights singleflight.Group
	// results and last are exposed at /metrics/slis.
	results *prometheus.CounterVec
	last    *prometheus.GaugeVec
	handler http.Handler
}

func newHealth(cfg Config, ending context.Context, leaving *atomic.Bool, logging *logging) *health {
	h := &health{
		ending: ending, log: cfg.Logger,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubernetes_healthchecks_total",
			Help: "[STABLE] This metric records the results of all healthcheck."}, []string{"name", "status", "type"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_healthcheck",
			Help: "[STABLE] This metric records the result of a single healthcheck."}, []string{"name", "type"}),
	}
	h.checks = append([]Check{
		{Name: "ping", Check: func(context.Context) error { return nil }, Live: true},
		{Name: "log", Check: logging.check, Live: true},
	}, cfg.Checks...)
	h.checks = append(h.checks, Check{Name: "shutdown", Check: func(context.Context) error {
		if leaving.Load() || ending.Err() != nil {
			return errors.New("process is shutting down")
		}
		return nil
	}})
	reg := prometheus.NewRegistry()
	reg.MustRegister(h.results, h.last, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	h.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	return h
}

// in reports whether the endpoint includes the check.
func (c *Check) in(endpoint string) bool {
	return endpoint == "readyz" || c.Live || c.Start && endpoint == "healthz"
}

func isHealth(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return strings.HasPrefix(path, "/") && (first == "healthz" || first == "livez" || first == "readyz")
}

// publicHealth reports whether a path needs no permission. The paths of single checks do, because they show why a
// check fails.
func publicHealth(path string) bool {
	return path == "/healthz" || path == "/livez" || path == "/readyz"
}

// run runs a check once for all concurrent callers.
func (h *health) run(ctx context.Context, endpoint string, c *Check) error {
	done := h.flights.DoChan(c.Name, func() (_ any, err error) {
		defer func() {
			if p := recover(); p != nil {
				h.log.Error("health check panicked", "check", c.Name, "panic", p, "stack", string(debug.Stack()))
				err = errors.New("the check panicked")
			}
		}()
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTime)
		defer cancel()
		return nil, c.Check(own)
	})
	late := time.NewTimer(checkTime + time.Second)
	defer late.Stop()
	var err error
	select {
	case r := <-done:
		err = r.Err
	case <-late.C:
		err = errors.New("the check timed out")
	case <-ctx.Done():
		err = ctx.Err()
	}
	status, value := "success", 1.0
	if err != nil {
		status, value = "error", 0
	}
	h.results.WithLabelValues(c.Name, status, endpoint).Inc()
	h.last.WithLabelValues(c.Name, endpoint).Set(value)
	return err
}

// ServeHTTP serves an endpoint or one of its checks (/readyz/etcd). ?verbose lists the checks, ?exclude=name skips
// one.
func (h *health) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	endpoint, only, _ := strings.Cut(strings.Trim(req.URL.Path, "/"), "/")
	if only != "" {
		h.one(w, req, endpoint, only)
		return
	}
	q := req.URL.Query()
	excluded := map[string]bool{} // by name, whether the check exists
	for _, name := range q["exclude"] {
		excluded[name] = false
	}
	var lines, reasons strings.Builder
	var failed []string
	for i := range h.checks {
		c := &h.checks[i]
		if !c.in(endpoint) {
			continue
		}
		if _, out := excluded[c.Name]; out {
			excluded[c.Name] = true
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		if err := h.run(req.Context(), endpoint, c); err != nil {
			failed = append(failed, c.Name)
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", c.Name)
			fmt.Fprintf(&reasons, "%s: %v; ", c.Name, err)
			continue
		}
		fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
	}
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(excluded)) {
		if !excluded[name] {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	if len(unknown) > 0 {
		fmt.Fprintf(&lines, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(unknown, ","))
	}
	if len(failed) > 0 {
		h.log.Debug("health check failed", "endpoint", endpoint, "failed", failed, "reasons", reasons.String())
		http.Error(w, fmt.Sprintf("%s%s check failed", lines.String(), endpoint), http.StatusInternalServerError)
		return
	}
	plainText(w)
	if _, verbose := q["verbose"]; !verbose {
		fmt.Fprint(w, "ok")
		return
	}
	fmt.Fprintf(w, "%s%s check passed\n", lines.String(), endpoint)
}

// one runs a single check and responds with its error, if any.
func (h *health) one(w http.ResponseWriter, req *http.Request, endpoint, name string) {
	for i := range h.checks {
		c := &h.checks[i]
		if c.Name != name || !c.in(endpoint) {
			continue
		}
		if err := h.run(req.Context(), endpoint, c); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		plainText(w)
		fmt.Fprint(w, "ok")
		return
	}
	http.Error(w, "404 page not found", http.StatusNotFound)
}

func plainText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// logging is a log handler that records how long its current write has been blocked.
type logging struct {
	slog.Handler
	state *loggingState
}

type loggingState struct{ writers, since atomic.Int64 }

// logBlocked is how long a log write may block before the health check fails.
const logBlocked = 10 * time.Second

func newLogging(h slog.Handler) *logging { return &logging{h, &loggingState{}} }

func (l *logging) Handle(ctx context.Context, r slog.Record) error {
	if l.state.writers.Add(1) == 1 {
		l.state.since.Store(time.Now().UnixNano())
	}
	defer l.state.writers.Add(-1)
	err := l.Handler.Handle(ctx, r)
	l.state.since.Store(time.Now().UnixNano())
	return err
}

func (l *logging) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logging{l.Handler.WithAttrs(attrs), l.state}
}

func (l *logging) WithGroup(name string) slog.Handler {
	return &logging{l.Handler.WithGroup(name), l.state}
}

func (l *logging) check(context.Context) error {
	if l.state.writers.Load() > 0 && time.Since(time.Unix(0, l.state.since.Load())) > logBlocked {
		return errors.New("logging blocked")
	}
	return nil
}
