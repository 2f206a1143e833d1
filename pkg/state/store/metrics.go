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

type operation int

const (
	opGet operation = iota
	opList
	opCreate
	opUpdate
	opDelete
	operations
)

var operationNames = [operations]string{
	"get", "list", "create", "update", "delete",
} //nolint:gochecknoglobals // a constant

// metrics uses upstream's names where upstream has the metric. Label values come only from served kinds.
type metrics struct {
	latency  *prometheus.HistogramVec
	failures *prometheus.CounterVec
	resource func(key string) (keys string, gr schema.GroupResource)

	// known maps the part of a key that names the kind, such as "pods" or "services/specs". The map is replaced, never
	// modified.
	known atomic.Pointer[map[string]*resourceMetrics]
	add   sync.Mutex
}

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
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .025, .1, .4, 1, 4, 10}},
			[]string{"operation", "group", "resource"}),
		failures: with.NewCounterVec(prometheus.CounterOpts{Name: "etcd_request_errors_total",
			Help: "Etcd failed request counts for each operation and object type."}, []string{"operation", "group", "resource"}),
	}
	m.known.Store(&map[string]*resourceMetrics{})
	gauge := func(name, help string, value func(Stats) int64, labels prometheus.Labels) {
		with.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 {
			return float64(value(s.Stats()))
		})
	}
	gauge("apiserver_storage_size_bytes", "Size of the storage database file physically allocated in bytes.",
		func(s Stats) int64 { return s.SizeBytes }, prometheus.Labels{"storage_cluster_id": "etcd-0"})
	gauge("coracle_store_used_bytes", "Bytes of the database that are in use, which count against the quota.",
		func(s Stats) int64 { return s.UsedBytes }, nil)
	gauge("coracle_store_quota_bytes", "Bytes in use above which writes that add data are refused.", func(s Stats) int64 {
		return s.QuotaBytes
	}, nil)
	gauge("coracle_store_revision", "Revision of the last write.", func(s Stats) int64 { return s.Revision }, nil)
	gauge("coracle_store_compacted_revision", "Revision up to which history has been compacted.", func(s Stats) int64 {
		return s.Compacted
	}, nil)
	return m
}

func (m *metrics) observe(op operation, key string, began time.Time, err error) {
	r := m.of(key).operations[op].Load()
	if r == nil {
		r = m.begin(m.of(key), op)
	}
	r.latency.Observe(time.Since(began).Seconds())
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrExists) &&
		!errors.Is(err, context.Canceled) {
		r.failures.Inc()
	}
}

func (m *metrics) begin(r *resourceMetrics, op operation) *operationMetrics {
	made := &operationMetrics{
		latency:  m.latency.WithLabelValues(operationNames[op], r.Group, r.Resource),
		failures: m.failures.WithLabelValues(operationNames[op], r.Group, r.Resource),
	}
	r.operations[op].Store(made)
	return made
}

// of returns the metrics of a key's kind. Keys of kinds that are not served share the metrics without labels.
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

// Stats is the state of the store. While it does not run, only QuotaBytes is set.
type Stats struct {
	// Revision is the revision of the last write; history up to Compacted has been compacted.
	Revision  int64 `json:"revision"`
	Compacted int64 `json:"compactedRevision"`
	// SizeBytes is the size of the database file; UsedBytes is the part in use, which QuotaBytes limits.
	SizeBytes  int64 `json:"sizeBytes"`
	UsedBytes  int64 `json:"usedBytes"`
	QuotaBytes int64 `json:"quotaBytes"`
	// DiskFreeBytes is the disk's free space at the last check; creates are refused below DiskMinFreeBytes.
	DiskFreeBytes    int64 `json:"diskFreeBytes"`
	DiskMinFreeBytes int64 `json:"diskMinFreeBytes"`
	Members          int   `json:"members"`
}

// Stats returns the state of the store. It never blocks on writes.
func (s *Store) Stats() Stats {
	at := s.etcd.Load()
	if at == nil {
		return Stats{QuotaBytes: s.cfg.QuotaBytes}
	}
	e := *at
	file, used := e.sizes()
	return Stats{
		Revision: e.seen(), Compacted: max(0, s.compacted.Load()), Members: e.members(),
		SizeBytes: file, UsedBytes: used, QuotaBytes: s.cfg.QuotaBytes,
		DiskFreeBytes: s.space.free.Load(), DiskMinFreeBytes: s.space.least.Load(),
	}
}

// etcdMetrics are the exposed metrics of etcd. etcd registers these and many more in the default registry.
var etcdMetrics = []string{ //nolint:gochecknoglobals // a constant
	"etcd_disk_backend_commit_duration_seconds", "etcd_disk_wal_fsync_duration_seconds",
	"etcd_mvcc_db_total_size_in_bytes", "etcd_mvcc_db_total_size_in_use_in_bytes",
	"etcd_server_has_leader", "etcd_server_leader_changes_seen_total",
	"etcd_server_proposals_applied_total", "etcd_server_proposals_committed_total", "etcd_server_proposals_failed_total",
	"etcd_server_proposals_pending",
}

// EtcdMetrics gathers the metrics of etcd that operators watch: disk latencies and proposals.
func EtcdMetrics() prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := prometheus.DefaultGatherer.Gather()
		if len(all) == 0 {
			return nil, err
		}
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
			return !slices.Contains(etcdMetrics, f.GetName())
		}), nil
	})
}
