package apiserver

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/coracle-dev/coracle/pkg/api/fairness"
)

// fairnessCollector exposes upstream's metrics of API Priority and Fairness.
type fairnessCollector struct{ set *fairness.Set }

var flowLabels = []string{"flow_schema", "priority_level"} //nolint:gochecknoglobals // a constant
var (                                                      //nolint:gochecknoglobals // constants
	inQueue = prometheus.NewDesc("apiserver_flowcontrol_current_inqueue_requests", "Requests waiting for a seat.",
		flowLabels, nil)
	executing = prometheus.NewDesc("apiserver_flowcontrol_current_executing_requests", "Requests with a seat.",
		flowLabels, nil)
	dispatched = prometheus.NewDesc("apiserver_flowcontrol_dispatched_requests_total", "Requests that got a seat.",
		flowLabels, nil)
	rejections = prometheus.NewDesc("apiserver_flowcontrol_rejected_requests_total", "Requests rejected with 429.",
		append(flowLabels[:2:2], "reason"), nil)
	nominal = prometheus.NewDesc("apiserver_flowcontrol_nominal_limit_seats",
		"Seats of a priority level, including the seats that it may lend.", flowLabels[1:], nil)
)

func (fairnessCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{inQueue, executing, dispatched, rejections, nominal} {
		ch <- d
	}
}

func (c fairnessCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.set.Stats() {
		ch <- prometheus.MustNewConstMetric(inQueue, prometheus.GaugeValue, float64(s.Waiting), s.Schema, s.Level)
		ch <- prometheus.MustNewConstMetric(executing, prometheus.GaugeValue, float64(s.Executing), s.Schema, s.Level)
		ch <- prometheus.MustNewConstMetric(dispatched, prometheus.CounterValue, float64(s.Dispatched), s.Schema, s.Level)
		// Create all possible series before the first rejection, so that rates include it.
		for _, reason := range []string{"queue-full", "time-out"} {
			s.Rejected[reason] += 0
		}
		for reason, n := range s.Rejected {
			ch <- prometheus.MustNewConstMetric(rejections, prometheus.CounterValue, float64(n), s.Schema, s.Level, reason)
		}
	}
	for level, seats := range c.set.Limits() {
		ch <- prometheus.MustNewConstMetric(nominal, prometheus.GaugeValue, float64(seats), level)
	}
}
