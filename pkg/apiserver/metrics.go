package apiserver

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/apiserver/fairness"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/kind/builtin"
)

// connectionMetrics count the connections of the socket.
type connectionMetrics struct {
	open    prometheus.Gauge
	refused prometheus.Counter
}

// metrics counts requests under upstream's names. A request costs one map lookup.
type metrics struct {
	handler     http.Handler
	kinds       *kind.Catalog
	disc        func() *discovery
	connections connectionMetrics
	requests    *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	watches     *prometheus.GaugeVec
	memo        sync.Map // of requestLabels to *requestMetrics
}

type requestLabels struct {
	verb, group, version, resource, subresource, scope string
	code                                               int
}

type requestMetrics struct {
	count   prometheus.Counter
	latency prometheus.Observer
}

func newMetrics(kinds *kind.Catalog, disc func() *discovery, fair *fairness.Set) *metrics {
	m := &metrics{
		kinds: kinds, disc: disc,
		connections: connectionMetrics{
			open:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "apiserver_connections", Help: "Connections to the API's socket."}),
			refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "apiserver_connections_refused_total", Help: "Connections beyond the bound, of all or of their address."}),
		},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_total", Help: "Requests by verb, resource and answer."},
			[]string{"verb", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_request_duration_seconds", Help: "Time from request to answer, without watches and streams.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .05, .1, .5, 1, 5, 60}},
			[]string{"verb", "group", "version", "resource", "subresource", "scope", "component"}),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_longrunning_requests", Help: "Watches being served."},
			[]string{"verb", "group", "version", "resource", "component"}),
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.requests, m.latency, m.watches, m.connections.open, m.connections.refused, fairnessCollector{fair}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	return m
}

// observe counts a request. Names that are no kind of ours are not told apart, so that requests cannot grow the memo.
func (m *metrics) observe(info *request.RequestInfo, code int, began time.Time) {
	if info == nil {
		return
	}
	l := requestLabels{verb: verbLabel(info), code: code}
	if info.IsResourceRequest && m.known(info) {
		l.group, l.version, l.resource, l.subresource = info.APIGroup, info.APIVersion, info.Resource, info.Subresource
		switch {
		case info.Name != "":
			l.scope = "resource"
		case info.Namespace != "":
			l.scope = "namespace"
		default:
			l.scope = "cluster"
		}
	}
	v, ok := m.memo.Load(l)
	if !ok {
		r := &requestMetrics{count: m.requests.WithLabelValues(l.verb, l.group, l.version, l.resource, l.subresource, l.scope, "apiserver", strconv.Itoa(code))}
		if !longRunning(info) {
			r.latency = m.latency.WithLabelValues(l.verb, l.group, l.version, l.resource, l.subresource, l.scope, "apiserver")
		}
		v, _ = m.memo.LoadOrStore(l, r)
	}
	r := v.(*requestMetrics)
	r.count.Inc()
	if r.latency != nil {
		r.latency.Observe(time.Since(began).Seconds())
	}
}

// verbLabel is a verb that the API has, or "other": a method is whatever a client sends.
func verbLabel(info *request.RequestInfo) string {
	switch v := info.Verb; v {
	case "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "head", "post", "put", "options", "proxy":
		return v
	}
	return "other"
}

// known reports whether the request's resource and subresource are ours.
func (m *metrics) known(info *request.RequestInfo) bool {
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	r := m.kinds.Table().ByGVR(gvr)
	switch {
	case r == nil:
		return info.Subresource == "" && (m.disc().review(gvr) != nil || gvr == builtin.ComponentStatuses().GVR())
	case info.Subresource == "":
		return true
	case info.Subresource == "status":
		return r.Status != nil
	}
	return r.Subresource(info.Subresource) != nil
}

// watching counts a watch until what it returns is called.
func (m *metrics) watching(r *kind.Resource) func() {
	g := m.watches.WithLabelValues("WATCH", r.Group, r.Version, r.Plural, "apiserver")
	g.Inc()
	return g.Dec
}
