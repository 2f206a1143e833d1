package messages

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func (c *counters) add(d counters) {
	c.accepted += d.accepted
	c.delivered += d.delivered
	c.redelivered += d.redelivered
	c.succeeded += d.succeeded
	c.failed += d.failed
	c.deadLettered += d.deadLettered
	c.refused += d.refused
}

// collector reports the queues of the node's pods. Gauges are labelled by worker, so the number of pods on the node
// bounds their cardinality. Counters have no worker label.
type collector struct{ m *Manager }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("coracle_messages_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- desc("depth", "Messages that wait in queues of this node's pods.", "namespace", "worker")
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	type key struct{ namespace, worker string }
	type sums struct {
		depth, flight int
		age           time.Duration
	}
	c.m.mu.Lock()
	pods := make([]*receiver, 0, len(c.m.pods))
	for _, r := range c.m.pods {
		pods = append(pods, r)
	}
	all := c.m.ended
	dropped := map[string]float64{}
	for f, n := range c.m.counted {
		dropped[string(f)] = n
	}
	c.m.mu.Unlock()
	by := map[key]sums{}
	for _, r := range pods {
		depth, flight, oldest, _, counts, _ := r.queue.report()
		all.add(counts)
		k := key{r.pod.Namespace, r.queue.config.Worker}
		s := by[k]
		s.depth, s.flight = s.depth+depth, s.flight+flight
		if !oldest.IsZero() {
			s.age = max(s.age, time.Since(oldest))
		}
		by[k] = s
	}
	gauge := func(name, help string, v float64, k key) {
		ch <- prometheus.MustNewConstMetric(desc(name, help, "namespace", "worker"), prometheus.GaugeValue, v, k.namespace,
			k.worker)
	}
	for k, s := range by {
		gauge("depth", "Messages that wait in queues of this node's pods.", float64(s.depth), k)
		gauge("in_flight", "Messages in flight in programs of this node's pods.", float64(s.flight), k)
		gauge("oldest_age_seconds", "How long the first message in a queue has waited.", s.age.Seconds(), k)
	}
	if len(by) == 0 && all == (counters{}) && len(dropped) == 0 {
		return
	}
	count := func(name, help string, v uint64) {
		ch <- prometheus.MustNewConstMetric(desc(name, help), prometheus.CounterValue, float64(v))
	}
	count("accepted_total", "Messages accepted into queues.", all.accepted)
	count("delivered_total", "Times that messages were given to programs.", all.delivered)
	count("redelivered_total", "Times that messages were given to programs again.", all.redelivered)
	count("succeeded_total", "Messages that programs have handled.", all.succeeded)
	count("failed_total", "Requests that ended with an error for their sender.", all.failed)
	count("refused_total", "Messages that full queues refused.", all.refused)
	count("dead_lettered_total", "Messages sent to dead-letter workers.", all.deadLettered)
	for f, n := range dropped {
		ch <- prometheus.MustNewConstMetric(desc("dropped_total",
			"Messages without a waiting sender that were given up.", "reason"), prometheus.CounterValue, n, f)
	}
}
