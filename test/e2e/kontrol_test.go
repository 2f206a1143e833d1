package e2e

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

func desired(name, mode, value string) string {
	return `
apiVersion: kontrol.coracle.dev/v1alpha1
kind: Resource
metadata: {name: ` + name + `}
spec:
  clusterSelector: {matchLabels: {site: edge}}
  mode: ` + mode + `
  template:
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: ` + name + `, namespace: default}
    data: {color: ` + value + `}
---
`
}

// TestKontrolOverTwoClusters reconciles one cluster from another by Resources, while the target is changed, killed
// and cut off.
func TestKontrolOverTwoClusters(t *testing.T) {
	hub := host.New(t)
	edge := hub.Beside()
	hub.Start()
	edge.Start()
	kubeconfig, err := os.ReadFile(filepath.Join(edge.Home, ".kube", "config"))
	require.NoError(t, err)
	hub.Apply(`
apiVersion: v1
kind: Secret
metadata: {name: edge, namespace: kube-system}
data: {kubeconfig: ` + base64.StdEncoding.EncodeToString(kubeconfig) + `}
---
apiVersion: v1
kind: Secret
metadata: {name: bad, namespace: kube-system}
stringData: {kubeconfig: "{kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: 'https://198.51.100.9:6443'}}], users: [{name: x, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/tmp/x]}}}]}"}
---
apiVersion: kontrol.coracle.dev/v1alpha1
kind: Cluster
metadata: {name: edge, labels: {site: edge}}
spec: {kubeconfigSecret: {namespace: kube-system, name: edge}}
---
apiVersion: kontrol.coracle.dev/v1alpha1
kind: Cluster
metadata: {name: bad}
spec: {kubeconfigSecret: {namespace: kube-system, name: bad}}
---
` + desired("left", "Report", "blue") + desired("mended", "Correct", "blue") + desired("pruned", "Enforce", "blue"))
	is := func(state string, names ...string) {
		t.Helper()
		for _, n := range names {
			hub.Ctl("wait --timeout=120s --for=jsonpath={.status.state}=" + state + " resources.kontrol.coracle.dev/" + n)
		}
	}
	color := func(name string) string { return edge.Ctl("get configmap " + name + " -o jsonpath={.data}") }
	is("Synced", "left", "mended", "pruned")
	hub.Shows("exec runs a command", "get clusters.kontrol.coracle.dev bad -o wide")

	// Manual drift is reported, corrected, or corrected and pruned, depending on the mode.
	for _, n := range []string{"left", "mended", "pruned"} {
		edge.Ctl(`patch configmap ` + n + ` --type merge -p {"data":{"color":"red","more":"1"}}`)
	}
	is("Drifted", "left")
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.color}=blue configmap/mended configmap/pruned")
	is("Synced", "mended", "pruned")
	require.JSONEq(t, `{"color":"red","more":"1"}`, color("left"))
	require.JSONEq(t, `{"color":"blue","more":"1"}`, color("mended"))
	require.Eventually(t, func() bool {
		return color("pruned") == `{"color":"blue"}`
	}, host.Patience, 50*time.Millisecond, "what it lacks is removed by a second write")
	require.Contains(t, hub.Ctl("get currentstates left.edge -o wide"), ".data.color Changed by kubectl-patch")

	hub.Apply(strings.Replace(desired("second", "Correct", "green"), "metadata: {name: second, namespace",
		"metadata: {name: mended, namespace", 1))
	is("Conflict", "second")
	require.Contains(t, hub.Ctl("get resources.kontrol.coracle.dev second -o wide"),
		"Resource mended already has the same object")
	hub.Ctl("delete resources.kontrol.coracle.dev second")
	require.JSONEq(t, `{"color":"blue","more":"1"}`, color("mended"))

	// The target is killed. When it is back, an edit made meanwhile is applied.
	edge.Kill()
	hub.Apply(desired("mended", "Correct", "gold"))
	is("Unreachable", "mended")
	edge.Start()
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.color}=gold configmap/mended")
	is("Synced", "mended", "pruned")

	// The target is cut off and changed meanwhile, and then reconnected.
	edge.Cut()
	hub.Apply(desired("mended", "Correct", "grey"))
	is("Unreachable", "mended")
	edge.Ctl(`patch configmap pruned --type merge -p {"data":{"color":"red"}}`)
	edge.Mend()
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.color}=grey configmap/mended")
	edge.Ctl("wait --timeout=120s --for=jsonpath={.data.color}=blue configmap/pruned")

	hub.Ctl("delete resources.kontrol.coracle.dev --all")
	require.Equal(t, "configmap/kube-root-ca.crt\n", edge.Ctl("get configmaps -o name"))
}
