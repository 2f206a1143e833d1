package task

import (
	"github.com/prometheus/client_golang/prometheus"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// metrics are the reconciler's own metrics. They count what this process has recorded.
type metrics struct {
	*prometheus.Registry
	attempts   *prometheus.CounterVec
	wait, runs prometheus.Histogram
}

func newMetrics() *metrics {
	buckets := []float64{1, 5, 15, 60, 300, 1800, 7200, 43200} // seconds: the API's times are whole seconds
	m := &metrics{
		prometheus.NewRegistry(),
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coracle_task_attempts_ended_total",
			Help: "Attempts of tasks that have ended, by phase: Completed or Failed.",
		}, []string{"phase"}),
		prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "coracle_task_attempt_wait_seconds", Buckets: buckets,
			Help: "Time from the creation of an attempt's pod to the start of its container, of ended attempts.",
		}),
		prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "coracle_task_attempt_run_seconds", Buckets: buckets,
			Help: "Time from the start of an attempt's container to its end.",
		}),
	}
	m.MustRegister(m.attempts, m.wait, m.runs)
	return m
}

func (m *metrics) ended(a *tasks.TaskAttempt) {
	m.attempts.WithLabelValues(string(a.Phase)).Inc()
	if a.StartedAt == nil || a.CreatedAt == nil || a.FinishedAt == nil {
		return
	}
	m.wait.Observe(max(a.StartedAt.Sub(a.CreatedAt.Time).Seconds(), 0))
	m.runs.Observe(max(a.FinishedAt.Sub(a.StartedAt.Time).Seconds(), 0))
}
