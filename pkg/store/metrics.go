package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// operation is what a request does, by upstream's names.
type operation int

const (
	opGet operation = iota
	opList
	opCreate
	opUpdate
	opDelete
	operations
)

var operationNames = [operations]string{"get", "list", "create", "update", "delete"} //nolint:gochecknoglobals // a constant

// metrics has upstream's names where upstream has the metric. Labels come from the kinds that are served alone.
type metrics struct {
	latency  *prometheus.HistogramVec
	failures *prometheus.CounterVec
	resource func(key string) (keys string, gr schema.GroupResource)

	// known finds the metrics by the part of the key that names the kind, "pods" or "services/specs". The map is replaced, never
	// changed.
	known atomic.Pointer[map[string]*resourceMetrics]
	add   sync.Mutex
}

// resourceMetrics are those of a kind; operations that were never asked for have none.
type resourceMetrics struct {
	schema.GroupResource
	operations [operations]atomic.Pointer[operationMetrics]
}

type operationMetrics struct {
	latency  prometheus.Observer
	failures prometheus.Counter
}

func newMetrics(s *Store) *metrics {
	with := promauto.With(s.cfg.Metrics)
	m := &metrics{
		resource: s.cfg.Resource,
		latency: with.NewHistogramVec(prometheus.HistogramOpts{Name: "etcd_request_duration_seconds",
			Help:    "Etcd request latency in seconds for each operation and object type.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .025, .1, .4, 1, 4, 10}}, []string{"operation", "group", "resource"}),
		failures: with.NewCounterVec(prometheus.CounterOpts{Name: "etcd_request_errors_total",
			Help: "Etcd failed request counts for each operation and object type."}, []string{"operation", "group", "resource"}),
	}
	m.known.Store(&map[string]*resourceMetrics{})
	gauge := func(name, help string, value func(Stats) int64, labels prometheus.Labels) {
		with.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(value(s.Stats())) })
	}
	gauge("apiserver_storage_size_bytes", "Size of the storage database file physically allocated in bytes.",
		func(s Stats) int64 { return s.SizeBytes }, prometheus.Labels{"storage_cluster_id": "etcd-0"})
	gauge("coracle_store_used_bytes", "Bytes of the database that are in use, which count against the quota.", func(s Stats) int64 { return s.UsedBytes }, nil)
	gauge("coracle_store_quota_bytes", "Bytes in use beyond which nothing new is accepted.", func(s Stats) int64 { return s.QuotaBytes }, nil)
	gauge("coracle_store_revision", "Revision of the last write.", func(s Stats) int64 { return s.Revision }, nil)
	gauge("coracle_store_compacted_revision", "Revision up to which history was dropped.", func(s Stats) int64 { return s.Compacted }, nil)
	return m
}

// observe counts a request that ended.
func (m *metrics) observe(op operation, key string, began time.Time, err error) {
	r := m.of(key).operations[op].Load()
	if r == nil {
		r = m.begin(m.of(key), op)
	}
	r.latency.Observe(time.Since(began).Seconds())
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrExists) && !errors.Is(err, context.Canceled) {
		r.failures.Inc()
	}
}

// begin makes the metrics of an operation on a kind. Doing so twice gives the same.
func (m *metrics) begin(r *resourceMetrics, op operation) *operationMetrics {
	made := &operationMetrics{
		latency:  m.latency.WithLabelValues(operationNames[op], r.Group, r.Resource),
		failures: m.failures.WithLabelValues(operationNames[op], r.Group, r.Resource),
	}
	r.operations[op].Store(made)
	return made
}

// of finds the metrics of a key's kind. Keys of no kind that is served share those without labels.
func (m *metrics) of(key string) *resourceMetrics {
	known := *m.known.Load()
	keys := strings.TrimPrefix(key, "/registry/")
	first := strings.IndexByte(keys, '/')
	if first < 0 {
		first = len(keys)
	}
	if r := known[keys[:first]]; r != nil {
		return r
	}
	if first < len(keys) {
		if second := strings.IndexByte(keys[first+1:], '/'); second >= 0 {
			if r := known[keys[:first+1+second]]; r != nil {
				return r
			}
		}
	}
	m.add.Lock()
	defer m.add.Unlock()
	name, gr := "", schema.GroupResource{}
	if m.resource != nil {
		name, gr = m.resource(key)
	}
	known = *m.known.Load()
	if r := known[name]; r != nil {
		return r
	}
	r := &resourceMetrics{GroupResource: gr}
	next := maps.Clone(known)
	next[name] = r
	m.known.Store(&next)
	return r
}

// Stats is the state of the store. Its zero value is that of a store that does not run.
type Stats struct {
	// Revision is that of the last write, Compacted the one up to which history was dropped.
	Revision  int64 `json:"revision"`
	Compacted int64 `json:"compactedRevision"`
	// SizeBytes is the database file, UsedBytes the part of it in use, which QuotaBytes bounds.
	SizeBytes  int64 `json:"sizeBytes"`
	UsedBytes  int64 `json:"usedBytes"`
	QuotaBytes int64 `json:"quotaBytes"`
	// DiskFreeBytes is the free space of the disk when it was last looked at; writes stop below DiskMinFreeBytes.
	DiskFreeBytes    int64 `json:"diskFreeBytes"`
	DiskMinFreeBytes int64 `json:"diskMinFreeBytes"`
	Members          int   `json:"members"`
}

// Stats reads the state of the store. It is cheap and never blocks on a write.
func (s *Store) Stats() Stats {
	e := s.server.Load()
	if e == nil {
		return Stats{QuotaBytes: s.cfg.QuotaBytes}
	}
	return Stats{
		Revision: e.KV().Rev(), Compacted: max(0, s.compacted.Load()), Members: members(e),
		SizeBytes: e.Backend().Size(), UsedBytes: e.Backend().SizeInUse(), QuotaBytes: s.cfg.QuotaBytes,
		DiskFreeBytes: s.space.free.Load(), DiskMinFreeBytes: s.cfg.MinFreeBytes,
	}
}

// etcdMetrics are those of etcd's own that are served. It registers them, and many more, in the process's default registry.
var etcdMetrics = []string{ //nolint:gochecknoglobals // a constant
	"etcd_disk_backend_commit_duration_seconds", "etcd_disk_wal_fsync_duration_seconds",
	"etcd_mvcc_db_total_size_in_bytes", "etcd_mvcc_db_total_size_in_use_in_bytes",
	"etcd_server_has_leader", "etcd_server_leader_changes_seen_total",
	"etcd_server_proposals_applied_total", "etcd_server_proposals_committed_total", "etcd_server_proposals_failed_total", "etcd_server_proposals_pending",
}

// EtcdMetrics gathers the metrics of etcd's own that operators watch: the latencies of its disk, and its proposals.
func EtcdMetrics() prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := prometheus.DefaultGatherer.Gather()
		if len(all) == 0 {
			return nil, err
		}
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !slices.Contains(etcdMetrics, f.GetName()) }), nil
	})
}
