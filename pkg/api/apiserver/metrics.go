package apiserver

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/fairness"
	"github.com/coracle-dev/coracle/pkg/kind"
)

type connectionMetrics struct {
	open    prometheus.Gauge
	refused prometheus.Counter
}

// metrics counts requests with upstream's metric names and labels. Clients cannot choose label values. A request
// costs one map lookup and no allocation.
type metrics struct {
	handler     http.Handler
	kinds       *kind.Catalog
	connections connectionMetrics
	requests    *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	longRunning *prometheus.GaugeVec
	watchEvents *prometheus.CounterVec
	panics      prometheus.Counter
	// mutating and readOnly count requests in flight that are not long-running.
	mutating, readOnly atomic.Int64

	mu     sync.RWMutex
	series map[requestLabels]*requestMetrics // by the label values seen so far
}

type requestLabels struct {
	verb, dryRun, group, version, resource, subresource, scope string
	code                                                       int // 0 for the gauge of long-running requests
}

type requestMetrics struct {
	count   prometheus.Counter
	latency prometheus.Observer
	running prometheus.Gauge
}

// mostSeries limits the request series to about what 500 kinds need. Above it, new series have no kind labels.
const mostSeries = 20_000

// scrapes is the maximum number of concurrent reads of /metrics.
const scrapes = 8

func newMetrics(cfg Config, fair *fairness.Set) *metrics {
	labels := []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}
	m := &metrics{
		kinds: cfg.Kinds, series: map[requestLabels]*requestMetrics{},
		connections: connectionMetrics{
			open: prometheus.NewGauge(prometheus.GaugeOpts{
				Name: "apiserver_connections", Help: "Open connections to the API server.",
			}),
			refused: prometheus.NewCounter(prometheus.CounterOpts{
				Name: "apiserver_connections_refused_total",
				Help: "Connections closed because the limit of all connections, or of their address, was reached.",
			}),
		},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, " +
				"component, and HTTP response code."},
			append(slices.Clone(labels), "code")),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_request_duration_seconds",
			Help: "Response latency distribution in seconds for each verb, dry run value, group, version, resource, " +
				"subresource, scope and component. Long-running requests are left out.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .025, .1, .4, 1, 4, 10, 30, 60}}, labels),
		longRunning: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_longrunning_requests",
			Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope " +
				"and component."},
			slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return l == "dry_run" })),
		watchEvents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total", Help: "Number of events sent in watch clients",
		},
			[]string{"group", "version", "resource"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "coracle_panics_recovered_total",
			Help:        "Units of work that panicked, by component. The log has their stacks.",
			ConstLabels: prometheus.Labels{"component": "apiserver"}}),
	}
	inflight := func(kind string, n *atomic.Int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "apiserver_current_inflight_requests",
			Help:        "Number of requests in flight, without long-running ones, per request kind.",
			ConstLabels: prometheus.Labels{"request_kind": kind}},
			func() float64 { return float64(n.Load()) })
	}
	audited, lost := func() int64 { return 0 }, func(string) int64 { return 0 }
	if log := cfg.Audit; log != nil {
		audited, lost = log.Events, log.Dropped
	}
	unaudited := func(plugin string) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "apiserver_audit_error_total",
			Help: "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected " +
				"by the error.",
			ConstLabels: prometheus.Labels{"plugin": plugin}}, func() float64 { return float64(lost(plugin)) })
	}
	reg := cfg.Metrics
	reg.MustRegister(m.requests, m.latency, m.longRunning, m.watchEvents, m.panics, m.connections.open,
		m.connections.refused, fairnessCollector{fair},
		inflight("mutating", &m.mutating), inflight("readOnly", &m.readOnly),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "apiserver_audit_event_total", Help: "Counter of audit events generated and sent to the audit backend.",
		}, func() float64 { return float64(audited()) }),
		unaudited("log"), unaudited("webhook"),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(append(prometheus.Gatherers{reg}, cfg.MoreMetrics...), promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapes,
	})
	return m
}

// begin counts a request as in flight. The caller decrements the returned counter. It is nil for long-running
// requests.
func (m *metrics) begin(info *request.RequestInfo) (inflight *atomic.Int64) {
	if info == nil || longRunning(m.kinds, info) {
		return nil
	}
	inflight = &m.mutating
	switch info.Verb {
	case "get", "list", "watch", "head", "options":
		inflight = &m.readOnly
	}
	inflight.Add(1)
	return inflight
}

func (m *metrics) observe(req *http.Request, info *request.RequestInfo, code int, began time.Time) {
	if info == nil {
		return
	}
	s := m.of(m.labels(req, info, code))
	s.count.Inc()
	if !longRunning(m.kinds, info) {
		s.latency.Observe(time.Since(began).Seconds())
	}
}

// running counts a long-running request until the returned function is called.
func (m *metrics) running(req *http.Request, info *request.RequestInfo) func() {
	l := m.labels(req, info, 0)
	l.dryRun = ""
	g := m.of(l).running
	g.Inc()
	return g.Dec
}

func (m *metrics) events(r *kind.Resource) prometheus.Counter {
	return m.watchEvents.WithLabelValues(r.Group, r.Version, r.Plural)
}

// labels returns upstream's labels. The kind labels are empty for kinds that are not served, so that clients cannot
// create series.
func (m *metrics) labels(req *http.Request, info *request.RequestInfo, code int) requestLabels {
	l := requestLabels{verb: verbLabel(req, info), dryRun: dryRunLabel(req.URL.RawQuery), code: codeLabel(code)}
	if !info.IsResourceRequest || !m.known(info) {
		return l
	}
	l.group, l.version, l.resource, l.subresource = info.APIGroup, info.APIVersion, info.Resource, info.Subresource
	switch {
	case info.Name != "" || info.Verb == "create":
		l.scope = "resource"
	case info.Namespace != "":
		l.scope = "namespace"
	default:
		l.scope = "cluster"
	}
	return l
}

// of returns the metrics for l. Above mostSeries it drops the kind from l.
func (m *metrics) of(l requestLabels) *requestMetrics {
	m.mu.RLock()
	s, ok := m.series[l]
	m.mu.RUnlock()
	if ok {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.series) >= mostSeries {
		l.group, l.version, l.resource, l.subresource = "", "", "", ""
	}
	if s, ok := m.series[l]; ok {
		return s
	}
	// Clone the strings, which would otherwise retain the request's path.
	for _, s := range []*string{&l.dryRun, &l.group, &l.version, &l.resource, &l.subresource} {
		*s = strings.Clone(*s)
	}
	s = &requestMetrics{}
	if l.code == 0 {
		s.running = m.longRunning.WithLabelValues(l.verb, l.group, l.version, l.resource, l.subresource, l.scope, "apiserver")
	} else {
		s.count = m.requests.WithLabelValues(l.verb, l.dryRun, l.group, l.version, l.resource, l.subresource, l.scope,
			"apiserver", strconv.Itoa(l.code))
		if l.verb != "WATCH" && l.verb != "CONNECT" {
			s.latency = m.latency.WithLabelValues(l.verb, l.dryRun, l.group, l.version, l.resource, l.subresource, l.scope,
				"apiserver")
		} else {
			s.latency = noObserver{}
		}
	}
	m.series[l] = s
	return s
}

type noObserver struct{}

func (noObserver) Observe(float64) {}

// codeLabel returns the status code, or 520 for codes that HTTP does not define: pods choose the codes of proxied
// responses.
func codeLabel(code int) int {
	switch {
	case code == 0:
		return 0
	case http.StatusText(code) == "":
		return 520
	}
	return code
}

// dryRunLabel returns "", "All" or "invalid".
func dryRunLabel(query string) string {
	if !strings.Contains(query, "dryRun") {
		return ""
	}
	for pair := range strings.SplitSeq(query, "&") {
		switch value, ok := strings.CutPrefix(pair, "dryRun="); {
		case !ok:
		case value == metav1.DryRunAll:
			return metav1.DryRunAll
		default:
			return "invalid"
		}
	}
	return ""
}

// verbLabel returns upstream's verb: the method, LIST, WATCH, APPLY or CONNECT, and "other" for unknown methods.
func verbLabel(req *http.Request, info *request.RequestInfo) string {
	if info.IsResourceRequest {
		switch info.Verb {
		case "watch":
			return "WATCH"
		case "proxy":
			return "CONNECT"
		case "list":
			return "LIST"
		case "deletecollection":
			return "DELETECOLLECTION"
		}
		switch info.Subresource {
		case "proxy", "exec", "attach", "portforward", "log":
			return "CONNECT"
		}
	}
	switch req.Method {
	case http.MethodPatch:
		if strings.HasPrefix(req.Header.Get("Content-Type"), string(types.ApplyPatchType)) {
			return "APPLY"
		}
		return "PATCH"
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
		return req.Method
	}
	return "other"
}

// known reports whether the request's resource and subresource are served.
func (m *metrics) known(info *request.RequestInfo) bool {
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	r := m.kinds.Table().ByGVR(gvr)
	switch {
	case r == nil:
		return false
	case info.Subresource == "":
		return true
	case info.Subresource == "status":
		return r.Status != nil
	}
	return r.Subresource(info.Subresource) != nil
}
