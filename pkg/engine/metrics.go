package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are named as in controller-runtime and in client-go's work queues. The only label is a reconciler's name.
type metrics struct {
	results                                *prometheus.CounterVec
	errors, panics, crashes, adds, retries *prometheus.CounterVec
	workers                                *prometheus.GaugeVec
	time, queued, worked                   *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	with := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help, label string) *prometheus.HistogramVec {
		return with.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: []float64{.00001, .0001, .0005, .001, .005, .025, .1, .5, 1, 5, 10, 30, 60}}, []string{label})
	}
	return &metrics{
		results: counter("controller_runtime_reconcile_total", "Total number of reconciliations per controller", "controller",
			"result"),
		errors: counter("controller_runtime_reconcile_errors_total", "Total number of reconciliation errors per controller",
			"controller"),
		panics: counter("controller_runtime_reconcile_panics_total", "Total number of reconciliation panics per controller",
			"controller"),
		crashes: counter("coracle_reconciler_crashes_total", "How often a reconciler failed as a whole and was started again",
			"controller"),
		time: histogram("controller_runtime_reconcile_time_seconds", "Length of time per reconciliation per controller",
			"controller"),
		workers: with.NewGaugeVec(prometheus.GaugeOpts{Name: "controller_runtime_max_concurrent_reconciles",
			Help: "Maximum number of concurrent reconciles per controller"}, []string{"controller"}),
		adds:    counter("workqueue_adds_total", "Total number of adds handled by workqueue", "name"),
		retries: counter("workqueue_retries_total", "Total number of retries handled by workqueue", "name"),
		queued: histogram("workqueue_queue_duration_seconds",
			"How long in seconds an item stays in workqueue before being requested", "name"),
		worked: histogram("workqueue_work_duration_seconds", "How long in seconds processing an item from workqueue takes.",
			"name"),
	}
}

type handles struct {
	results                                struct{ success, failed, after prometheus.Counter }
	errors, panics, crashes, adds, retries prometheus.Counter
	time, queued, worked                   prometheus.Observer
}

func (m *metrics) of(name string, workers int) (h handles) {
	h.results.success = m.results.WithLabelValues(name, "success")
	h.results.failed = m.results.WithLabelValues(name, "error")
	h.results.after = m.results.WithLabelValues(name, "requeue_after")
	h.errors, h.panics, h.crashes = m.errors.WithLabelValues(name), m.panics.WithLabelValues(name),
		m.crashes.WithLabelValues(name)
	h.adds, h.retries = m.adds.WithLabelValues(name), m.retries.WithLabelValues(name)
	h.time, h.queued, h.worked = m.time.WithLabelValues(name), m.queued.WithLabelValues(name), m.worked.WithLabelValues(
		name)
	m.workers.WithLabelValues(name).Set(float64(workers))
	return h
}

//nolint:gochecknoglobals // constants
var (
	descDepth      = prometheus.NewDesc("workqueue_depth", "Current depth of workqueue", []string{"name"}, nil)
	descUnfinished = prometheus.NewDesc("workqueue_unfinished_work_seconds",
		"How many seconds of work has been done that is in progress and hasn't been observed by work_duration.",
		[]string{"name"}, nil)
	descLongest = prometheus.NewDesc("workqueue_longest_running_processor_seconds",
		"How many seconds has the longest running processor for workqueue been running.", []string{"name"}, nil)
	descActive = prometheus.NewDesc("controller_runtime_active_workers",
		"Number of currently used workers per controller", []string{"controller"}, nil)
	descFailing = prometheus.NewDesc("coracle_reconciler_failing_objects",
		"Objects whose last reconciliation failed and that are in back-off, per controller", []string{"controller"}, nil)
)

// collector provides the metrics that are read from the queues.
type collector struct{ m *Monitor }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDepth, descUnfinished, descLongest, descActive, descFailing} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, o := range c.m.all() {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, o.r.Name)
		}
		o.mu.Lock()
		q, failing := o.queue, len(o.failing)
		o.mu.Unlock()
		var unfinished, longest time.Duration
		depth := 0
		if q != nil {
			unfinished, longest = q.inProgress(time.Now())
			depth = q.Len()
		}
		gauge(descDepth, float64(depth))
		gauge(descUnfinished, unfinished.Seconds())
		gauge(descLongest, longest.Seconds())
		gauge(descActive, float64(o.running.Load()))
		gauge(descFailing, float64(failing))
	}
}
