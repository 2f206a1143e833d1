package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

// startPlane runs a control plane until the test ends. It also creates a node, which does not run.
func startPlane(t testing.TB) *plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "coracle-plane-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := config.Default()
	c.DataDir, c.RunDir, c.MergeKubeconfig = filepath.Join(dir, "data"), filepath.Join(dir, "run"), false
	require.NoError(t, os.MkdirAll(c.DataDir, 0o700))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address, err := outwardAddress()
	require.NoError(t, err)
	c.Listen, c.NodeName, c.NodeIP = listener.Addr().String(), "here", address.String()
	p := &process{
		Config:   c,
		log:      slog.New(slog.DiscardHandler),
		metrics:  newRegistries(),
		nodeIP:   address,
		listener: listener,
		started:  make(chan struct{}),
	}
	keys, err := pki.Load(pkiDir(c.DataDir))
	require.NoError(t, err)
	l, err := newPlane(p, keys)
	require.NoError(t, err)
	m, err := l.membership()
	require.NoError(t, err)
	p.node, err = newNode(p, m)
	require.NoError(t, err)
	t.Cleanup(func() {
		// Creating a node creates an nftables table in the network namespace of the tests.
		require.NoError(t, p.node.network.Close())
		require.NoError(t, purge(context.Background(), c))
		var left strings.Builder
		require.NoError(t, DumpRules(c, &left))
		require.NotContains(t, left.String(), "table")
	})
	p.url, p.store = l.url, l.store

	ctx, cancel := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan struct{})
	components := append(l.components(), &last{
		notify: func(context.Context) { close(p.started); close(ready) },
	})
	go func() { ended <- run.All(ctx, run.Observer{}, components...) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return l
}

func (l *plane) get(t *testing.T, path string, who *user.DefaultInfo) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, path, nil)
	w := httptest.NewRecorder()
	l.apiserver.Handler().ServeHTTP(w, req.WithContext(apirequest.WithUser(req.Context(), who)))
	return w
}

var admin = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

func TestMetricsAreNamedAsPrometheusWants(t *testing.T) {
	l := startPlane(t)
	require.Equal(t, http.StatusOK, l.get(t, "/api/v1/pods", admin).Code)
	l.watchOnce(t)
	for _, reg := range []prometheus.Gatherer{
		l.process.metrics.plane, l.process.metrics.node, l.controllers, l.scheduler,
	} {
		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		require.Empty(t, problems)
	}
	names := servedMetrics(t, l)
	for _, want := range []string{
		"apiserver_request_total", "apiserver_request_duration_seconds_bucket", "apiserver_current_inflight_requests",
		"apiserver_watch_events_total",
		"apiserver_audit_event_total", "apiserver_audit_error_total", "etcd_request_duration_seconds_bucket",
		"apiserver_storage_objects", "apiserver_resource_objects",
		"apiserver_storage_size_bytes", "coracle_store_quota_bytes", "coracle_cache_lag_revisions",
		"coracle_cache_wait_duration_seconds_bucket",
		"apiserver_terminated_watchers_total", "workqueue_depth", "workqueue_adds_total",
		"workqueue_queue_duration_seconds_bucket",
		"controller_runtime_reconcile_total", "controller_runtime_reconcile_errors_total",
		"controller_runtime_reconcile_time_seconds_bucket",
		"scheduler_pending_pods", "scheduler_schedule_attempts_total", "scheduler_scheduling_attempt_duration_seconds_bucket",
		"kubelet_pod_start_sli_duration_seconds_bucket", "kubelet_running_pods", "coracle_pod_step_duration_seconds_bucket",
		"kubeproxy_sync_proxy_rules_duration_seconds_bucket", "coredns_dns_requests_total", "coredns_dns_responses_total",
		"coracle_panics_recovered_total", "coracle_events_lost_total", "leader_election_master_status",
		"apiserver_flowcontrol_rejected_requests_total",
		"etcd_disk_wal_fsync_duration_seconds_bucket", "process_resident_memory_bytes", "kubernetes_build_info",
	} {
		require.True(t, names[want], want)
	}
}

func (l *plane) watchOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(apirequest.WithUser(t.Context(), admin))
	defer cancel()
	l.apiserver.Handler().ServeHTTP(cancelling{httptest.NewRecorder(), cancel},
		httptest.NewRequest(http.MethodGet, "/api/v1/namespaces?watch=true", nil).WithContext(ctx))
}

type cancelling struct {
	*httptest.ResponseRecorder
	cancel context.CancelFunc
}

func (c cancelling) Write(b []byte) (int, error) {
	c.cancel()
	return c.ResponseRecorder.Write(b)
}

func servedMetrics(t *testing.T, l *plane) map[string]bool {
	names := map[string]bool{}
	families, err := append(prometheus.Gatherers{l.process.metrics.plane}, l.gatherers()...).Gather()
	require.NoError(t, err)
	ofNode, err := l.process.metrics.node.Gather()
	require.NoError(t, err)
	for _, f := range append(families, ofNode...) {
		names[f.GetName()] = true
		if strings.HasSuffix(f.GetType().String(), "HISTOGRAM") {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				names[f.GetName()+suffix] = true
			}
		}
	}
	return names
}
