package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// maxLabelled limits the clusters that are label values of metrics. Others count together as otherClusters.
const (
	maxLabelled   = 500
	otherClusters = "(others)"
)

var (
	resourcesMetric = prometheus.NewDesc("coracle_kontrol_resources",
		"Kontrol's Resources by cluster and state, such as Synced or Drifted.", []string{"cluster", "state"}, nil)
	oldestMetric = prometheus.NewDesc("coracle_kontrol_state_age_seconds",
		"How long a Resource has been in a state on a cluster, of the Resource that has been so for longest. Synced is left "+
			"out.", []string{"cluster", "state"}, nil)
)

// tally counts the states of Resources by cluster, for metrics. It implements prometheus.Collector.
type tally struct {
	mu sync.Mutex
	of map[string][]counted // by Resource
}

// counted is the state of a Resource on a cluster, and since when.
type counted struct {
	cluster string
	state   kontrol.State
	since   time.Time
}

// set records the states of a Resource; none for one that is gone.
func (t *tally) set(resource string, states []counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range states {
		s := &states[i]
		had := slices.IndexFunc(t.of[resource], func(c counted) bool { return c.cluster == s.cluster && c.state == s.state })
		if had >= 0 {
			s.since = t.of[resource][had].since
		}
	}
	if t.of == nil {
		t.of = map[string][]counted{}
	}
	if t.of[resource] = states; len(states) == 0 {
		delete(t.of, resource)
	}
}

// Describe implements prometheus.Collector.
func (t *tally) Describe(out chan<- *prometheus.Desc) { out <- resourcesMetric; out <- oldestMetric }

// Collect implements prometheus.Collector.
func (t *tally) Collect(out chan<- prometheus.Metric) {
	type key struct {
		cluster string
		state   kontrol.State
	}
	t.mu.Lock()
	counts, oldest, named := map[key]int{}, map[key]time.Time{}, t.named()
	for _, states := range t.of {
		for _, s := range states {
			if !named[s.cluster] {
				s.cluster = otherClusters
			}
			k := key{s.cluster, s.state}
			if counts[k]++; oldest[k].IsZero() || s.since.Before(oldest[k]) {
				oldest[k] = s.since
			}
		}
	}
	t.mu.Unlock()
	for k, n := range counts {
		labels := []string{k.cluster, string(k.state)}
		out <- prometheus.MustNewConstMetric(resourcesMetric, prometheus.GaugeValue, float64(n), labels...)
		if k.state != kontrol.StateSynced {
			age := max(0, time.Since(oldest[k]).Seconds())
			out <- prometheus.MustNewConstMetric(oldestMetric, prometheus.GaugeValue, age, labels...)
		}
	}
}

// named returns the clusters that are label values: the first by name. The caller holds the lock.
func (t *tally) named() map[string]bool {
	out := map[string]bool{}
	for _, states := range t.of {
		for _, s := range states {
			out[s.cluster] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(out))[min(len(out), maxLabelled):] {
		delete(out, name)
	}
	return out
}
