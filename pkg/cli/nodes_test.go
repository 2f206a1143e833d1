package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/command/commandtest"
)

// TestNodes checks that the heartbeat comes from the node's Lease, because the heartbeat time in its status can be
// minutes old.
func TestNodes(t *testing.T) {
	scheme, err := command.Scheme()
	require.NoError(t, err)
	now := time.Now()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(now.Add(-4 * time.Minute))},
		}, Capacity: corev1.ResourceList{"cpu": resource.MustParse("2")}},
	}
	cordoned := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "o"},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status:     corev1.NodeStatus{Conditions: n.Status.Conditions},
	}
	renewed := metav1.NewMicroTime(now.Add(-7 * time.Second))
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{tasks.LabelTask: "t"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")}},
		}}},
	}
	c := &command.Cluster{
		Client: fake.NewClientBuilder().
			WithScheme(scheme).WithRESTMapper(command.Connector{}.Mapper()).WithObjects(n, l, p, cordoned).Build(),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/n/proxy/stats/summary" {
			http.Error(w, "the node does not answer", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"node":{"fs":{"capacityBytes":42949672960,"usedBytes":10737418240},`+
			`"runtime":{"imageFs":{"usedBytes":1610612736}}}}`)
	}))
	defer server.Close()
	c.REST = &rest.Config{Host: server.URL}
	out := commandtest.Output(t, func(out io.Writer) error { return Nodes(t.Context(), c, "wide", out) })
	require.Regexp(t, `(?m)^n +Online +250m/2 .* 10\.0 GiB/40\.0 GiB +1/0 +([7-9]|\d\d)s +- +1\.5 GiB +1$`, out)
	require.Regexp(t, `(?m)^o +Online,Cordoned +0/0 +0 B/0 B +- +0/0 +\S+ +- +- +0$`, out)
	out = commandtest.Output(t, func(out io.Writer) error { return Nodes(t.Context(), c, "", out) })
	require.Regexp(t, `(?m)^n +Online +250m/2 .* 10\.0 GiB/40\.0 GiB +1/0 +([7-9]|\d\d)s$`, out)
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 80, "fits a terminal of 80 columns")
	}

	var rows []map[string]any
	text := commandtest.Output(t, func(out io.Writer) error { return Nodes(t.Context(), c, "json", out) })
	require.NoError(t, json.Unmarshal([]byte(text), &rows))
	require.Len(t, rows, 2)
	require.Equal(t, map[string]any{"usedBytes": 10737418240., "capacityBytes": 42949672960., "imagesBytes": 1610612736.},
		rows[0]["disk"])
	require.NotContains(t, rows[1], "disk")
	require.ErrorContains(t, Nodes(t.Context(), c, "yaml", io.Discard), "-o wide or -o json")
}
