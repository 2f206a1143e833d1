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

// shop writes the files of a bundle with two waves.
func shop(t *testing.T, dir, color string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	for name, text := range map[string]string{
		"namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n",
		"first.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first, namespace: shop}\ndata: {color: " +
			color + "}\n",
		"second.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: second, namespace: shop, annotations: " +
			"{kontrol/wave: '1'}}\ndata: {color: " + color + "}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

// TestKontrolBundleOverTwoClusters rolls out a directory to two clusters in sequence. A cluster that refuses an
// object stops the rollout. The rollout is paused and resumed, and the hub is killed during it.
func TestKontrolBundleOverTwoClusters(t *testing.T) {
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
apiVersion: kontrol.coracle.dev/v1alpha1
kind: Cluster
metadata: {name: edge, labels: {shop: "yes"}}
spec: {kubeconfigSecret: {namespace: kube-system, name: edge}}
---
apiVersion: kontrol.coracle.dev/v1alpha1
kind: Cluster
metadata: {name: this, labels: {shop: "yes"}}
spec: {local: true}
`)
	hub.Ctl("wait --timeout=120s --for=condition=Ready clusters.kontrol.coracle.dev --all")
	color := func(h *host.Host, name string) string {
		return h.Ctl("get configmap -n shop " + name + " -o jsonpath={.data.color}")
	}
	dir := filepath.Join(hub.Home, "shop")
	shop(t, dir, "blue")
	require.Contains(t, hub.Fails("kontrol", "push", dir), "choose its clusters")
	require.Contains(t, hub.Run("kontrol", "push", dir, "--selector", "shop=yes", "--dry-run"), "+  color: blue")
	require.Equal(t, "bundle shop created: 3 objects in 2 waves\n",
		hub.Run("kontrol", "push", dir, "--selector", "shop=yes"))
	hub.Run("kontrol", "wait", "bundle/shop")
	for _, h := range []*host.Host{hub, edge} {
		require.Equal(t, []string{"blue", "blue"}, []string{color(h, "first"), color(h, "second")})
	}
	require.Regexp(t, `(?m)^shop +3 +2/2 +Synced +2/2 +inline `, hub.Run("kontrol", "get"))
	require.Regexp(t, `(?m)^edge +Synced `, hub.Run("kontrol", "describe", "bundle/shop"))
	require.Equal(t, "bundle shop unchanged: 3 objects in 2 waves\n", hub.Run("kontrol", "push", dir))

	// The first cluster (edge sorts before this) refuses a field. Its second wave and the other cluster stay unchanged.
	shop(t, dir, "{a: b}")
	hub.Run("kontrol", "push", dir)
	hub.Run("kontrol", "wait", "bundle/shop", "--for", "Failed")
	require.Contains(t, hub.Run("kontrol", "describe", "bundle/shop"), "on edge: wave 0: ConfigMap/shop/first: ")
	require.Equal(t, []string{"blue", "blue", "blue", "blue"},
		[]string{color(edge, "first"), color(edge, "second"), color(hub, "first"), color(hub, "second")})

	// Valid content is paused and resumed. The hub is killed in between, and edge during the rollout.
	hub.Ctl(`patch bundles.kontrol.coracle.dev shop --type merge -p {"spec":{"rollout":{"paused":true}}}`)
	shop(t, dir, "gold")
	hub.Run("kontrol", "push", dir)
	hub.Run("kontrol", "wait", "bundle/shop", "--for", "Paused")
	hub.Kill()
	hub.Start()
	hub.Run("kontrol", "wait", "bundle/shop", "--for", "Paused")
	require.Equal(t, "blue", color(edge, "first"))
	edge.Kill()
	hub.Ctl(`patch bundles.kontrol.coracle.dev shop --type merge -p {"spec":{"rollout":{"paused":false}}}`)
	hub.Kill()
	edge.Start()
	hub.Start()
	hub.Run("kontrol", "wait", "bundle/shop", "--timeout", "2m")
	for _, h := range []*host.Host{hub, edge} {
		require.Equal(t, []string{"gold", "gold"}, []string{color(h, "first"), color(h, "second")})
	}

	// Removing a file deletes its object, and deleting the bundle deletes all objects.
	require.NoError(t, os.Remove(filepath.Join(dir, "second.yaml")))
	hub.Run("kontrol", "push", dir)
	for _, h := range []*host.Host{edge, hub} {
		h.Ctl("wait --timeout=120s --for=delete -n shop configmap/second")
	}
	hub.Ctl("delete bundles.kontrol.coracle.dev shop")
	for _, h := range []*host.Host{edge, hub} {
		h.Ctl("wait --timeout=120s --for=delete namespace/shop")
	}
	require.Eventually(t, func() bool {
		return !strings.Contains(hub.Ctl("get resources.kontrol.coracle.dev -o name"), "shop")
	}, host.Patience, 50*time.Millisecond)
}
