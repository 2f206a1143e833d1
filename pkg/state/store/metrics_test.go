package store

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Keys are counted by kind. Keys of kinds that are not served share one series.
func TestMetricsKnowTheKindsOfKeys(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, _ := open(t, Config{Dir: t.TempDir(), Metrics: reg, Resource: func(key string) (string, schema.GroupResource) {
		for keys, gr := range map[string]schema.GroupResource{
			"pods":           {Resource: "pods"},
			"services/specs": {Resource: "services"},
			"deployments":    {Group: "apps", Resource: "deployments"},
		} {
			if strings.HasPrefix(key, "/registry/"+keys+"/") {
				return keys, gr
			}
		}
		return "", schema.GroupResource{}
	}})
	ctx := t.Context()
	for _, key := range []string{
		"/registry/pods/a/x", "/registry/pods/b/x", "/registry/services/specs/a/x", "/registry/deployments/a/x",
		"/registry/made-up/x", "/registry/other/a/x",
	} {
		rev, err := s.Create(ctx, key, []byte("v"), 0)
		require.NoError(t, err)
		_, err = s.Update(ctx, key, []byte("w"), rev, 0)
		require.NoError(t, err)
		_, err = s.Update(ctx, key, []byte("w"), rev, 0)
		require.ErrorIs(t, err, ErrConflict)
	}
	_, err := s.Create(ctx, "/registry/pods/a/large", make([]byte, MaxValueBytes+1), 0)
	require.ErrorIs(t, err, ErrTooLarge)
	_, _, _, err = s.Range(ctx, "/registry/pods/", "", 0, 0)
	require.NoError(t, err)
	_, err = s.Get(ctx, "/registry/pods/a/y")
	require.ErrorIs(t, err, ErrNotFound)

	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP etcd_request_errors_total Etcd failed request counts for each operation and object type.
# TYPE etcd_request_errors_total counter
etcd_request_errors_total{group="",operation="create",resource=""} 0
etcd_request_errors_total{group="",operation="create",resource="pods"} 1
etcd_request_errors_total{group="",operation="create",resource="services"} 0
etcd_request_errors_total{group="",operation="get",resource="pods"} 0
etcd_request_errors_total{group="",operation="list",resource="pods"} 0
etcd_request_errors_total{group="",operation="update",resource=""} 0
etcd_request_errors_total{group="",operation="update",resource="pods"} 0
etcd_request_errors_total{group="",operation="update",resource="services"} 0
etcd_request_errors_total{group="apps",operation="create",resource="deployments"} 0
etcd_request_errors_total{group="apps",operation="update",resource="deployments"} 0
`), "etcd_request_errors_total"))
	stats := s.Stats()
	require.Positive(t, stats.UsedBytes)
	require.LessOrEqual(t, stats.UsedBytes, stats.SizeBytes)
	rev, err := s.Revision(ctx)
	require.NoError(t, err)
	require.Equal(t, rev, stats.Revision)
	problems, err := testutil.GatherAndLint(reg) // etcd's names do not follow the lint rules
	require.NoError(t, err)
	require.Empty(t, problems)
	families, err := EtcdMetrics().Gather()
	require.NoError(t, err)
	require.Len(t, families, len(etcdMetrics))
}
