package dispatch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics returns the metrics of all queues. Their number is bounded by the number of workers: queues of pods without a
// worker share one label.
func (d *Dispatcher) Metrics() prometheus.Collector { return collector{d} }

type collector struct{ d *Dispatcher }

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("coracle_messages_"+name, help, []string{"namespace", "worker"}, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- desc("depth", "Messages that wait in the queues of workers.")
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	type name struct{ namespace, worker string }
	type sums struct {
		counts
		depth, flight, dead int
		age                 time.Duration
	}
	c.d.mu.Lock()
	states := make([]*state, 0, len(c.d.states))
	for _, s := range c.d.states {
		states = append(states, s)
	}
	c.d.mu.Unlock()
	by := map[name]sums{}
	for _, s := range states {
		depth := c.d.c.Queues.Depth(s.key)
		k := name{s.key.Namespace, s.key.Worker}
		n := by[k]
		n.depth, n.flight, n.dead = n.depth+depth.Waiting, n.flight+depth.InFlight, n.dead+depth.Dead
		if !depth.Oldest.IsZero() {
			n.age = max(n.age, time.Since(depth.Oldest))
		}
		s.mu.Lock()
		n.add(s.counts)
		s.mu.Unlock()
		by[k] = n
	}
	for k, n := range by {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, k.namespace, k.worker)
		}
		count := func(d *prometheus.Desc, v uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), k.namespace, k.worker)
		}
		gauge(desc("depth", "Messages that wait in the queues of workers."), float64(n.depth))
		gauge(desc("in_flight", "Messages that programs handle."), float64(n.flight))
		gauge(desc("dead", "Failed messages that are kept in queues."), float64(n.dead))
		gauge(desc("oldest_age_seconds", "How long the first message in a queue has waited."), n.age.Seconds())
		count(desc("accepted_total", "Messages accepted into queues."), n.accepted)
		count(desc("delivered_total", "Times that messages were given to programs."), n.delivered)
		count(desc("redelivered_total", "Times that messages were given to programs again."), n.redelivered)
		count(desc("succeeded_total", "Messages that programs have handled."), n.succeeded)
		count(desc("failed_total", "Messages that ended without success, dead ones included."), n.failed)
		count(desc("refused_total", "Messages that queues refused."), n.refused)
		count(desc("duplicate_total", "Messages that queues took for a repetition of an earlier one."), n.duplicate)
		count(desc("dead_lettered_total", "Messages sent to dead-letter workers."), n.deadLettered)
		count(desc("dropped_total", "Messages without a waiting sender that were dropped."), n.dropped)
	}
}

func (c *counts) add(o counts) {
	c.accepted += o.accepted
	c.delivered += o.delivered
	c.redelivered += o.redelivered
	c.succeeded += o.succeeded
	c.failed += o.failed
	c.refused += o.refused
	c.deadLettered += o.deadLettered
	c.dropped += o.dropped
	c.duplicate += o.duplicate
}
