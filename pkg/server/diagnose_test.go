package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

func TestADiagnosisSaysWhatIsWrongAndWhy(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	node := func(name string, conditions ...corev1.NodeCondition) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: conditions}}
	}
	ready := corev1.NodeCondition{
		Type:               corev1.NodeReady,
		Status:             corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(ago(time.Hour)),
	}
	waits := func(reason string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "no such image"}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: state}}
		return p
	}
	room := store.Stats{
		UsedBytes:        1 << 20,
		QuotaBytes:       512 << 20,
		Revision:         7,
		DiskFreeBytes:    1 << 30,
		DiskMinFreeBytes: 128 << 20,
	}
	full, noDisk := room, room
	full.UsedBytes, noDisk.DiskFreeBytes = 512<<20, 1<<20
	for _, c := range []struct {
		name, state, want string
		h                 socket.Health
	}{
		{"a store with room", socket.OK, "1.0 MiB in use of 512.0 MiB, revision 7", storeHealth(room, "", nil)},
		{"a store that is nearly full", socket.Warning, "nearly full: delete", storeHealth(room, "delete objects", nil)},
		{"a full store", socket.Unhealthy, "creates are refused: delete", storeHealth(full, "delete objects", nil)},
		{"a full disk", socket.Unhealthy, "1.0 MiB free, 128.0 MiB needed", storeHealth(noDisk, "", nil)},
		{
			"a store that does not answer", socket.Unhealthy, "cannot read: broken", storeHealth(room, "", errors.New("broken")),
		},

		{
			"reconcilers", socket.OK, "1 running, 1 object queued, 0 in back-off",
			reconcilerHealth([]engine.Report{{Name: "a", Synced: true, Queued: 1}}, now),
		},
		{"a conflict", socket.OK, "1 in back-off", reconcilerHealth([]engine.Report{{Name: "a", Synced: true, Failing: 1,
			Failures: []engine.Failure{{Object: "d/x", Since: ago(time.Second), Attempts: 9, Error: "conflict"}}}}, now)},
		{
			"an object that fails", socket.Unhealthy, "deployment: d/x failing for 3m, 12 attempts: quota exceeded",
			reconcilerHealth([]engine.Report{{Name: "deployment", Synced: true, Failing: 1,
				Failures: []engine.Failure{
					{Object: "d/x", Since: ago(3 * time.Minute), Attempts: 12, Error: "quota exceeded\nmore"},
				}}}, now),
		},
		{
			"an object beyond its tenant's quota", socket.Warning, "replicaset: d/x failing for 3m",
			reconcilerHealth([]engine.Report{{Name: "replicaset", Synced: true, Failing: 1,
				Failures: []engine.Failure{{
					Object: "d/x", Since: ago(3 * time.Minute), Attempts: 12, Error: "exceeded quota", Refused: true,
				}}}}, now),
		},
		{
			"a reconciler that crashed", socket.Unhealthy, "task is not synced: crashed: panic",
			reconcilerHealth([]engine.Report{{Name: "task", LastCrash: "panic\nstack"}}, now),
		},

		{"pods that run or start", socket.OK, "3 pods", podsHealth([]*corev1.Pod{
			waits(""), waits("ContainerCreating"), waits("PodInitializing")}, nil).Health},
		{"a pod that fails", socket.Warning, "2 pods, 1 failing: `coracle help debug-a-pod`\n" +
			"ns/web: container main: ImagePullBackOff: no such image", podsHealth([]*corev1.Pod{
			waits(""), waits("ImagePullBackOff")}, nil).Health},
		{"a pod whose volume cannot be mounted", socket.Warning, "1 pod, 1 failing: `coracle help debug-a-pod`\n" +
			"ns/web: FailedMount: volume c: there is no ConfigMap c", podsHealth([]*corev1.Pod{waits("ContainerCreating")},
			[]pod.Blocked{{Namespace: "ns", Name: "web", Reason: "FailedMount", Message: "volume c: there is no ConfigMap c"}},
		).Health},
		{"no pods wait", socket.OK, "0 pods pending", schedulerHealth(nil, 0, now)},
		{"a pod that has just come", socket.OK, "1 pod pending", schedulerHealth([]scheduler.Pending{{Since: now}}, 1, now)},
		{
			"a pod that fits nowhere", socket.Warning, "1 pod pending: `coracle help debug-a-pod`\n" +
				"d/big pending for 2m: 0/1 nodes are available: 1 Insufficient cpu.",
			schedulerHealth([]scheduler.Pending{
				{Namespace: "d", Name: "big", Since: ago(2 * time.Minute), Reason: "0/1 nodes are available: 1 Insufficient cpu. " +
					"preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."},
			}, 1, now),
		},

		{"nodes", socket.OK, "2 of 2 ready", nodesHealth([]corev1.Node{node("a", ready), node("b", ready)}, nil, now)},
		{
			"a node that is lost", socket.Unhealthy, "b not ready for 5m: NodeStatusUnknown: Kubelet stopped posting node " +
				"status. Start its agent; if the machine is gone, `coracle ctl delete node b`",
			nodesHealth([]corev1.Node{node("a", ready), node("b",
				corev1.NodeCondition{
					Type:               corev1.NodeReady,
					Status:             corev1.ConditionUnknown,
					Reason:             "NodeStatusUnknown",
					Message:            "Kubelet stopped posting node status.",
					LastTransitionTime: metav1.NewTime(ago(5 * time.Minute)),
				})}, nil, now),
		},
		{
			"a node under pressure", socket.Warning, "a has MemoryPressure",
			nodesHealth([]corev1.Node{
				node("a", ready, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}),
			}, nil, now),
		},
		{
			"a node that never reported", socket.Unhealthy, "a not ready: it never",
			nodesHealth([]corev1.Node{node("a")}, nil, now),
		},

		{
			"certificates", socket.OK, "client: 40d left, renewed by itself",
			certificateHealth([]pki.Item{
				{Name: "key"}, {Name: "retired key, which may end", Until: now.Add(time.Hour)},
				{Name: "client", Until: now.Add(40*24*time.Hour + time.Hour), Renewal: pki.RenewedAlone},
			}, nil, now),
		},
		{
			"a certificate that ends soon", socket.Warning, "client expires in 20d",
			certificateHealth([]pki.Item{{Name: "client", Until: now.Add(20*24*time.Hour + time.Hour), Renewal: "x"}}, nil, now),
		},
		{
			"a certificate that has ended", socket.Unhealthy, "client expired at",
			certificateHealth([]pki.Item{{Name: "client", Until: ago(time.Hour), Renewal: "x"}}, nil, now),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.state, c.h.State, c.h)
			require.Contains(t, strings.Join(append([]string{c.h.Summary}, c.h.Details...), "\n"), c.want)
			require.NotContains(t, c.h.Details, "\n")
		})
	}
}

// TestLongReason checks that a long reason keeps its end, where the remedy stands.
func TestLongReason(t *testing.T) {
	text := firstLine("Back-off pulling image: " + strings.Repeat("cause ", 300) + ": set imagePullPolicy: IfNotPresent" +
		"\nmore")
	require.True(t, strings.HasPrefix(text, "Back-off pulling image: cause"))
	require.True(t, strings.HasSuffix(text, "cause : set imagePullPolicy: IfNotPresent"))
	require.Contains(t, text, " ... ")
	require.LessOrEqual(t, len(text), mostLine+len(" ... "))
	require.Equal(t, "short", firstLine(" short\nmore"))
}

func TestAPlaneDiagnosesItself(t *testing.T) {
	l := startPlane(t)
	l.process.plane = l
	l.process.nodeIP = netip.MustParseAddr("127.0.0.9") // at the machine's own address another cluster may serve DNS
	states := map[string]socket.Health{}
	well := func() bool { // the cache may get no CPU for a second
		for _, h := range l.process.Health(t.Context()) {
			states[h.Component] = h
		}
		return states["api"].State == socket.OK && states["cache"].State == socket.OK
	}
	for deadline := time.Now().Add(time.Minute); !well() && time.Now().Before(deadline); {
	}
	for _, part := range []string{"api", "store", "cache", "reconcilers", "scheduler", "nodes", "certificates"} {
		require.Equal(t, socket.OK, states[part].State, "%s: %v", part, states[part])
	}
	for _, part := range []string{"proxy", "dns", "network", "node"} { // not running in this test
		require.Equal(t, socket.Unhealthy, states[part].State, "%s: %v", part, states[part])
	}

	objects := filepath.Join(l.process.DataDir, storeDir, store.Directory)
	require.NoError(t, os.Rename(objects, objects+".away"))
	well()
	require.Equal(t, socket.Unhealthy, states["store"].State)
	require.Contains(t, states["store"].Details[0], objects+": no such file or directory")
	require.NoError(t, os.Rename(objects+".away", objects))
}

// TestInspection checks that inspection is for administrators only and contains no secrets.
func TestInspection(t *testing.T) {
	l := startPlane(t)
	l.process.Token = "swordfish"
	for path, want := range map[string]string{
		"cache": `"resource": "namespaces"`, "reconcilers": `"name": "deployment"`, "fairness": `"name": "workload-low"`,
		"store": `"quotaBytes"`,
	} {
		w := l.get(t, "/debug/coracle/"+path, admin)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.Contains(t, w.Body.String(), want)
		for _, who := range []*user.DefaultInfo{
			{Name: "ann", Groups: []string{user.AllAuthenticated}},
			{Name: "system:serviceaccount:default:default", Groups: []string{"system:serviceaccounts", user.AllAuthenticated}},
			{Name: "prometheus", Groups: []string{user.MonitoringGroup, user.AllAuthenticated}},
		} {
			require.Equal(t, http.StatusForbidden, l.get(t, "/debug/coracle/"+path, who).Code, who.Name)
		}
	}
	c := l.client("admin", user.SystemPrivilegedGroup)
	require.Eventually(t, func() bool {
		return c.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{}) == nil
	}, time.Minute, time.Millisecond)
	require.NoError(t,
		c.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		}))
	for query, code := range map[string]int{
		"namespace=default&pod=p": http.StatusOK, "namespace=default&pod=q": http.StatusNotFound,
		"pod=p":                             http.StatusBadRequest,
		"namespace=default&pod=p&node=gone": http.StatusBadRequest,
	} {
		require.Equal(t, code, l.get(t, "/debug/coracle/schedule?"+query, admin).Code, query)
		require.Equal(t, http.StatusForbidden,
			l.get(t, "/debug/coracle/schedule?"+query, &user.DefaultInfo{
				Name: "ann", Groups: []string{user.AllAuthenticated},
			}).Code)
	}
	require.Contains(t, l.get(t, "/debug/coracle/schedule?namespace=default&pod=p", admin).Body.String(),
		`"summary": "no nodes available to schedule pods"`)
	require.Equal(t, http.StatusNotFound, l.get(t, "/debug/coracle/options", admin).Code,
		"only on the machine's own socket")
	l.process.plane = l
	w := get(l.process.Debug(), "/debug/coracle/options")
	require.Contains(t, w.Body.String(), masked)
	require.NotContains(t, w.Body.String(), "swordfish")
	require.Contains(t, get(l.process.Debug(), "/debug/coracle/metrics/control-plane").Body.String(),
		"\napiserver_storage_objects")
	require.Contains(t, get(l.process.Debug(), "/debug/coracle/metrics/node").Body.String(), "\nkubelet_running_pods 0")
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}
