package cache

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Stats describes the cache of one kind.
type Stats struct {
	schema.GroupResource `json:",inline"`
	Version              string `json:"version"`
	Objects              int    `json:"objects"`
	// Revision is the revision of the last change applied to the kind.
	Revision int64 `json:"revision"`
	Watchers int   `json:"watchers"`
	// Ring is the number of recent changes retained for watchers, RingLimit their maximum, and Oldest the oldest
	// revision from which a watch can start.
	Ring      int   `json:"ring"`
	RingLimit int   `json:"ringLimit"`
	Oldest    int64 `json:"oldestRevision"`
	// Changes counts the changes applied since the start.
	Changes uint64 `json:"changes"`
	// Expired counts the watchers that fell behind the ring, Refused the watches from a revision no longer retained.
	Expired uint64 `json:"expiredWatchers"`
	Refused uint64 `json:"refusedWatches"`
}

// Stats describes all kinds, in no particular order. It briefly takes each kind's lock.
func (c *Cache) Stats() []Stats {
	all := make([]Stats, 0, len(c.caches.Load().all))
	for _, t := range c.caches.Load().all {
		s := Stats{
			GroupResource: t.row.GR(),
			Version:       t.row.Version,
			Expired:       t.expired.Load(),
			Refused:       t.refused.Load(),
			Watchers:      t.notifier.count(),
		}
		t.mu.RLock()
		r := &t.ring
		s.Objects, s.Revision, s.Ring, s.RingLimit, s.Oldest = t.objects.Len(), t.rev, int(r.next-r.first), r.limit, r.floor
		s.Changes = r.next - firstSequence
		t.mu.RUnlock()
		all = append(all, s)
	}
	return all
}

// Count returns the number of objects of a kind; 0 for a kind that is not cached.
func (c *Cache) Count(r *kind.Resource) int {
	t := c.kindCache(r)
	if t == nil {
		return 0
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.objects.Len()
}

func (b *notifier) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all)
}

// Sizes are approximate sizes of a kind's objects, in bytes.
type Sizes struct {
	// Objects is the encoded size of all objects as stored; in memory they take about three times as much.
	Objects int64 `json:"objectBytes"`
	// Encodings is the size of the encodings cached for lists and watches.
	Encodings int64 `json:"encodingBytes"`
}

// sampled is the maximum number of objects measured per kind, from which the total is extrapolated.
const sampled = 1000

// Sizes measures all kinds. It visits every object without holding a lock.
func (c *Cache) Sizes() map[schema.GroupResource]Sizes {
	all := make(map[schema.GroupResource]Sizes, len(c.caches.Load().all))
	for _, t := range c.caches.Load().all {
		var s Sizes
		snapshot := t.snapshot()
		n := snapshot.objects.Len()
		step := max(1, n/sampled)
		i, measured := 0, int64(0)
		snapshot.each("", func(e *Entry) bool {
			if i%step == 0 {
				s.Objects += e.size()
				measured++
			}
			i++
			for i := range e.kept {
				if b := e.kept[i].Load(); b != nil {
					s.Encodings += int64(len(*b))
				}
			}
			return true
		})
		if measured > 0 {
			s.Objects = s.Objects * int64(n) / measured
		}
		all[t.row.GR()] = s
	}
	return all
}

// size is the approximate size of the stored object. It does not cache an encoding.
func (e *Entry) size() int64 {
	if b := e.kept[encodingProto].Load(); b != nil {
		return int64(len(*b))
	}
	if m, ok := e.Object.(interface{ Size() int }); ok {
		return int64(m.Size())
	}
	if b := e.kept[encodingJSON].Load(); b != nil {
		return int64(len(*b))
	}
	return int64(len(e.marshal(nil)))
}

type metrics struct{ wait prometheus.Histogram }

var kindLabels = []string{"group", "resource"} //nolint:gochecknoglobals // a constant

//nolint:gochecknoglobals // constants
var (
	descObjects = prometheus.NewDesc("apiserver_resource_objects",
		"Number of stored objects at the time of last check split by kind.", kindLabels, nil)
	descStorage = prometheus.NewDesc("apiserver_storage_objects",
		"Number of stored objects at the time of last check split by kind. apiserver_resource_objects has the group as a "+
			"label.", kindLabels[1:], nil)
	descEvents = prometheus.NewDesc("apiserver_storage_events_received_total",
		"Number of etcd events received split by kind.", kindLabels, nil)
	descExpired = prometheus.NewDesc("apiserver_terminated_watchers_total",
		"Counter of watchers closed due to unresponsiveness broken by resource type.", kindLabels, nil)
	descRefused = prometheus.NewDesc("coracle_cache_refused_watches_total",
		"Watches that asked for a revision that is no longer held, split by kind.", kindLabels, nil)
	descWatchers = prometheus.NewDesc("coracle_cache_watchers",
		"Watchers of the cache, of clients and of this process, split by kind.", kindLabels, nil)
	descRing = prometheus.NewDesc("coracle_cache_ring_changes", "Recent changes held for watchers, split by kind.",
		kindLabels, nil)
	descRevision = prometheus.NewDesc("coracle_cache_revision", "Revision that readers of the cache see.", nil, nil)
)

func newMetrics(reg prometheus.Registerer, c *Cache) metrics {
	if reg != nil {
		reg.MustRegister(collector{c})
	}
	return metrics{wait: promauto.With(reg).NewHistogram(prometheus.HistogramOpts{
		Name: "coracle_cache_wait_duration_seconds",
		Help: "How long reads and writes waited for the cache to show a revision. Those that did not have to wait are " +
			"not counted.",
		Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05, .25, 1, 5, 30},
	})}
}

type collector struct{ c *Cache }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descObjects, descStorage, descEvents, descExpired, descRefused, descWatchers, descRing, descRevision,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descRevision, prometheus.GaugeValue, float64(c.c.Revision()))
	for _, s := range c.c.Stats() {
		gauge := func(d *prometheus.Desc, v int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), s.Group, s.Resource)
		}
		count := func(d *prometheus.Desc, v uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), s.Group, s.Resource)
		}
		ch <- prometheus.MustNewConstMetric(descStorage, prometheus.GaugeValue, float64(s.Objects), s.String())
		gauge(descObjects, s.Objects)
		gauge(descWatchers, s.Watchers)
		gauge(descRing, s.Ring)
		count(descEvents, s.Changes)
		count(descExpired, s.Expired)
		count(descRefused, s.Refused)
	}
}
