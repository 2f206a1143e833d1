package e2e

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestKontrolPull checks a cluster that connects to the hub itself: it gets objects, and drift is repaired. Its
// agent and the hub are killed, and it resumes.
func TestKontrolPull(t *testing.T) {
	hub := host.New(t)
	edge := hub.Beside()
	hub.Start()
	edge.Start()
	file := filepath.Join(hub.Home, "boat.token")
	require.Contains(t, hub.Fails("kontrol", "clusters", "add", "boat", "--pull"),
		"--pull and --token-file FILE go together")
	require.Contains(t, hub.Run("kontrol", "clusters", "add", "boat", "--pull", "--token-file", file),
		"coracle agent kontrol --hub https://")
	server := hub.REST().Host
	agent := func() func() {
		cmd := edge.Command(context.Background(), edge.Coracle, "agent", "kontrol", "--hub", server, "--token-file", file,
			"--kubeconfig", filepath.Join(edge.Home, ".kube", "config"))
		require.NoError(t, cmd.Start())
		end := sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		t.Cleanup(end)
		return end
	}
	is := func(state string) {
		t.Helper()
		hub.Ctl("wait --timeout=120s --for=jsonpath={.status.state}=" + state + " resources.kontrol.coracle.dev/pulled")
	}
	resource := func(value string) string {
		return "apiVersion: kontrol.coracle.dev/v1alpha1\nkind: Resource\nmetadata: {name: pulled}\nspec:\n  clusterName: " +
			"boat\n" +
			"  template: {apiVersion: v1, kind: ConfigMap, metadata: {name: pulled, namespace: default}, data: {color: " +
			value + "}}\n"
	}
	hub.Apply(resource("blue"))
	is("Unreachable")
	require.Contains(t, hub.Run("kontrol", "clusters"), "no agent of cluster boat is connected")
	kill := agent()
	is("Synced")
	require.Equal(t, "blue", edge.Ctl("get configmap pulled -o jsonpath={.data.color}"))
	edge.Ctl(`patch configmap pulled --type merge -p {"data":{"color":"red"}}`)
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.color}=blue configmap/pulled")

	// The hub asks the cluster through its agent for a dry run, and adopts objects from it.
	require.Empty(t, hub.Run("kontrol", "diff", "pulled"))
	hub.Ctl(`patch kres pulled --type merge -p {"spec":{"suspend":true,"template":{"data":{"color":"green"}}}}`)
	out, code := exitCode(t, hub, "kontrol", "diff", "pulled")
	require.Equal(t, 1, code)
	require.Contains(t, out, "-  color: blue\n+  color: green\n")
	hub.Ctl(`patch kres pulled --type merge -p {"spec":{"suspend":false,"template":{"data":{"color":"blue"}}}}`)
	is("Synced")
	edge.Ctl("create configmap found --from-literal=a=b")
	require.Contains(t, hub.Run("kontrol", "adopt", "configmap/found", "--cluster", "boat"), "a: b")
	const proxy = "/apis/kontrol.coracle.dev/v1alpha1/clusters/boat/proxy"
	require.Contains(t, hub.Ctl("get --raw "+proxy+"/api/v1/namespaces/default/configmaps/found"), `"a":"b"`)
	require.Contains(t, hub.Fails("ctl", "get", "--raw", proxy+"/metrics"), "only requests for objects")

	// The agent is killed and its token revoked. The next agent has a new token, and applies an edit made meanwhile.
	kill()
	hub.Ctl("delete serviceaccount kontrol-pull-boat -n kube-system")
	require.Contains(t, hub.Fails("kontrol", "clusters", "add", "boat", "--pull", "--token-file", file, "-l", "a=b"),
		"without --label its kubeconfig or token is renewed")
	hub.Run("kontrol", "clusters", "add", "boat", "--pull", "--token-file", file)
	hub.Apply(resource("gold"))
	is("Unreachable")
	out, code = exitCode(t, hub, "kontrol", "diff", "pulled")
	require.Equal(t, 1, code, "the diff uses the last recorded object")
	require.Contains(t, out, "-  color: blue\n+  color: gold\n")
	agent()
	is("Synced")
	require.Equal(t, "gold", edge.Ctl("get configmap pulled -o jsonpath={.data.color}"))

	// The hub is killed. The agent reconnects by itself.
	hub.Kill()
	hub.Start()
	hub.Apply(resource("grey"))
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.color}=grey configmap/pulled")
	is("Synced")

	// The token may only connect this cluster.
	may := func(words ...string) string {
		out, _ := hub.Try(append([]string{
			"ctl", "auth", "can-i", "--as", "system:serviceaccount:kube-system:kontrol-pull-boat",
		}, words...)...)
		return out
	}
	require.Contains(t, may("create", "clusters.kontrol.coracle.dev/boat", "--subresource", "tunnel"), "yes")
	require.NotContains(t, may("create", "clusters.kontrol.coracle.dev/other", "--subresource", "tunnel"), "yes")
	require.NotContains(t, may("list", "secrets", "-A"), "yes")
	require.NotContains(t, may("get", "clusters.kontrol.coracle.dev/boat", "--subresource", "proxy"), "yes")
	hub.Ctl("delete resources.kontrol.coracle.dev pulled")
	hub.Run("kontrol", "clusters", "remove", "boat")
	hub.Ctl("wait --timeout=120s --for=delete -n kube-system serviceaccount/kontrol-pull-boat")
}
