package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-dev/coracle/test/host"
)

// TestKontrolTargetKilled kills a target's server with SIGKILL while many objects are applied to it. Once it is
// back it must get all of them, and no object may be reported as lost. Then the target is cut off and changed: when
// it is back, its watches must resume without another list. It takes a minute, and runs with CORACLE_TEST_FLEET=1
// (hack/nightly.sh fleet).
func TestKontrolTargetKilled(t *testing.T) {
	if os.Getenv("CORACLE_TEST_FLEET") == "" {
		t.Skip("takes a minute: set CORACLE_TEST_FLEET=1 (hack/nightly.sh fleet does)")
	}
	const many, some = 120, 20
	hub := host.New(t)
	edge := hub.Beside()
	hub.Run("start")
	edge.Run("start")
	hub.Run("kontrol", "clusters", "add", "edge", "--kubeconfig", filepath.Join(edge.Home, ".kube", "config"))
	suspend := func(yes bool) {
		hub.Ctl(fmt.Sprintf(`patch kcl edge --type merge -p {"spec":{"suspend":%t}}`, yes))
	}
	suspend(true)
	var all strings.Builder
	for i := range many {
		fmt.Fprintf(&all,
			"---\napiVersion: kontrol.coracle.dev/v1alpha1\nkind: Resource\nmetadata: {name: r%03d}\nspec:\n  clusterName: "+
				"edge\n"+
				"  template: {apiVersion: v1, kind: ConfigMap, metadata: {name: m%03d, namespace: default}, data: {value: "+
				"\"%d\"}}\n", i, i, i)
	}
	hub.Apply(all.String())
	are := func(state string) {
		t.Helper()
		hub.Ctl("wait --timeout=120s --for=jsonpath={.status.state}=" + state + " resources.kontrol.coracle.dev --all")
	}

	// Some objects have arrived, others are in flight.
	client, err := kubernetes.NewForConfig(edge.REST())
	require.NoError(t, err)
	arriving, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{
		LabelSelector: "kontrol/resource-id",
	})
	require.NoError(t, err)
	server := edge.Status().PID
	suspend(false)
	seen := map[string]bool{}
	for len(seen) < some {
		e, open := <-arriving.ResultChan()
		require.True(t, open)
		if m, ok := e.Object.(*corev1.ConfigMap); ok {
			seen[m.Name] = true
		}
	}
	edge.KillAtOnce(server)
	arriving.Stop()
	are("Unreachable")
	edge.Run("start")
	are("Synced")
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{
		LabelSelector: "kontrol/resource-id",
	})
	require.NoError(t, err)
	require.Len(t, list.Items, many)
	for i := range list.Items {
		m := &list.Items[i]
		require.Equal(t, fmt.Sprintf("m%03s", m.Data["value"]), m.Name)
		require.Equal(t, "1", m.Annotations["kontrol/revision"])
	}
	for _, state := range []string{"Conflict", "OutOfSync", "Drifted"} {
		require.NotContains(t, hub.Run("kontrol", "get"), state)
	}

	// The target is cut off and changed.
	listed := regexp.MustCompile(`apiserver_request_total\{[^}]*resource="configmaps"[^}]*verb="LIST"[^}]*\} (\d+)`)
	lists := func() (n int) {
		for _, m := range listed.FindAllStringSubmatch(edge.Ctl("get --raw /metrics"), -1) {
			count, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			n += count
		}
		return n
	}
	before := lists()
	require.Positive(t, before)
	edge.Cut()
	hub.Ctl(`patch kres r000 --type merge -p {"spec":{"template":{"data":{"value":"edited"}}}}`)
	are("Unreachable")
	edge.Ctl(`patch configmap m001 --type merge -p {"data":{"value":"drift"}}`)
	edge.Ctl("delete configmap m002")
	edge.Mend()
	hub.Run("kontrol", "wait", "r000", "--timeout", "120s")
	require.LessOrEqual(t, lists(), before+1, "one list may ask for the current version; objects are not listed again")
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.value}=edited configmap/m000")
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.value}=1 configmap/m001")
	edge.Ctl("wait --timeout=120s --for=create configmap/m002")
	are("Synced")
}
