package proxy

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics uses kube-proxy's metric names.
type metrics struct {
	duration prometheus.Observer
	last     prometheus.Gauge
	failures prometheus.Counter

	mu     sync.Mutex
	status Status
}

// Status describes the last sync.
type Status struct {
	Services int `json:"services"`
	// Synced is the time of the last successful sync, or zero.
	Synced time.Time `json:"synced"`
	// Error is the error of the last sync, or empty.
	Error string `json:"error,omitempty"`
}

func newMetrics(reg prometheus.Registerer, p *Proxy) *metrics {
	with := promauto.With(reg)
	family := []string{"ip_family"}
	m := &metrics{
		duration: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_sync_proxy_rules_duration_seconds", Help: "SyncProxyRules latency in seconds",
			Buckets: prometheus.ExponentialBuckets(0.0001, 3, 12),
		}, family).WithLabelValues("IPv4"),
		last: with.NewGaugeVec(prometheus.GaugeOpts{Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			Help: "The last time proxy rules were successfully synced"}, family).WithLabelValues("IPv4"),
		failures: with.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			Help: "Cumulative proxy nftables sync failures"}, family).WithLabelValues("IPv4"),
	}
	if reg != nil {
		reg.MustRegister(p.guard.Metrics(), p.events.Metrics())
	}
	return m
}

func (m *metrics) synced(began time.Time, err error) {
	now := time.Now()
	m.duration.Observe(now.Sub(began).Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.failures.Inc()
		m.status.Error = err.Error()
		return
	}
	m.last.Set(float64(now.UnixMilli()) / 1000)
	m.status.Synced, m.status.Error = now, ""
}

// Status returns the result of the last sync.
func (p *Proxy) Status() Status {
	p.metrics.mu.Lock()
	s := p.metrics.status
	p.metrics.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Services = len(p.services)
	return s
}
