package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-dev/coracle/test/host"
	"github.com/coracle-dev/coracle/test/upstream"
)

// TestUpstreamKontrol runs the operator with Kontrol's kinds on an upstream API server, with revisions, history and
// refusals as on Coracle. Then a Coracle hub uses that server as a cluster.
func TestUpstreamKontrol(t *testing.T) {
	upstream.Needs(t)
	h := host.New(t)
	foreign := upstream.New(t, h, upstream.Config{Controllers: true})
	at := func(args ...string) []string { return append(args, "--kubeconfig", foreign.Kubeconfig) }
	kubectl := func(args ...string) string { return h.Run(at(append([]string{"ctl"}, args...)...)...) }
	file := func(name, text string) string {
		path := filepath.Join(h.Home, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	require.Contains(t, h.Fails(at("operator", "kontrol")...), "apply what `coracle operator kontrol --print-crds` prints")
	kubectl("apply", "--server-side", "-f", file("crds.yaml", h.Run("operator", "kontrol", "--print-crds")))
	kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
	// The operator has the rights that it prints, and an editor's rights for the Cluster of this API server.
	kubectl("create", "namespace", "kontrol")
	kubectl("apply", "-f",
		file("rbac.yaml", h.Run("operator", "kontrol", "--print-rbac", "--source-namespaces", "kontrol")))
	const account = "coracle-operator-kontrol"
	mine := withToken(t, foreign.Kubeconfig, strings.TrimSpace(kubectl("create", "token", account, "-n", "kube-system")))
	may := func(verb, what string, more ...string) bool {
		_, err := h.Try(append([]string{"ctl", "auth", "can-i", verb, what, "--kubeconfig", mine}, more...)...)
		return err == nil
	}
	require.True(t, may("watch", "secrets", "-n", "kontrol"))
	require.False(t, may("get", "secrets"))
	require.False(t, may("list", "configmaps", "-A"))
	require.True(t, may("update", "appliedstates.kontrol.coracle.dev"))
	require.False(t, may("get", "nodes"))
	require.False(t, may("create", "configmaps"))
	kubectl("create", "clusterrolebinding", "kontrol-here", "--clusterrole=edit", "--serviceaccount=kube-system:"+account)
	operator := func() func() {
		cmd := h.Command(context.Background(), h.Coracle, "operator", "kontrol", "--kubeconfig", mine, "--source-namespaces",
			"kontrol")
		require.NoError(t, cmd.Start())
		return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	}
	kill := operator()
	defer func() { kill() }()

	// As on Coracle: sync, correction of drift, a new revision, and its rollback.
	kubectl("apply", "-f",
		file("here.yaml",
			"{apiVersion: kontrol.coracle.dev/v1alpha1, kind: Cluster, metadata: {name: this}, spec: {local: true}}"))
	resource := func(value string) string {
		return file("greeting.yaml",
			"apiVersion: kontrol.coracle.dev/v1alpha1\nkind: Resource\nmetadata: {name: greeting}\nspec:\n  clusterName: this\n"+
				"  template: {apiVersion: v1, kind: ConfigMap, metadata: {name: greeting, namespace: default}, data: {hello: "+
				value+"}}\n")
	}
	wait := func(name string) { h.Run(at("kontrol", "wait", name)...) }
	hello := func() string { return kubectl("get", "configmap", "greeting", "-o", "jsonpath={.data.hello}") }
	kubectl("apply", "-f", resource("<world>"))
	wait("greeting")
	require.Equal(t, "<world>", hello())
	require.Regexp(t, `(?m)^this +True +v1\.37\.\d+ `, h.Run(at("kontrol", "clusters")...), "the version is the server's")
	kubectl("patch", "configmap", "greeting", "-p", `{"data":{"hello":"drift"}}`)
	kubectl("wait", "--for=jsonpath={.data.hello}=<world>", "--timeout=120s", "configmap/greeting")
	kubectl("apply", "-f", resource("sea"))
	wait("greeting")
	require.Equal(t, "sea", hello())
	require.Regexp(t, `(?m)^2 .*\n1 `, h.Run(at("kontrol", "history", "greeting")...))
	h.Run(at("kontrol", "rollback", "greeting", "--to", "1")...)
	wait("greeting")
	require.Equal(t, "<world>", hello())
	require.Equal(t, "1",
		kubectl("get", "configmap", "greeting", "-o", `jsonpath={.metadata.annotations.kontrol/revision}`))

	// The operator reads kubeconfigs only in the permitted namespaces.
	for _, namespace := range []string{"kontrol", "default"} {
		kubectl("create", "secret", "generic", "other", "-n", namespace, "--from-file=kubeconfig="+foreign.Kubeconfig)
		kubectl("apply", "-f",
			file("in.yaml",
				"{apiVersion: kontrol.coracle.dev/v1alpha1, kind: Cluster, metadata: {name: in-"+namespace+
					"}, spec: {kubeconfigSecret: {namespace: "+namespace+", name: other}}}"))
	}
	kubectl("wait", "--for=condition=Ready", "--timeout=120s", "kcl/in-kontrol")
	kubectl("wait", "--for=condition=Ready=False", "--timeout=120s", "kcl/in-default")
	require.Contains(t, kubectl("get", "kcl", "in-default", "-o", "jsonpath={.status.conditions[0].message}"),
		"this operator reads those of kontrol alone")
	kubectl("delete", "kcl", "in-kontrol", "in-default")

	// The schema refuses what it can express. The operator reports the other errors and applies nothing.
	require.Contains(t,
		h.Fails(at("ctl", "patch", "kres", "greeting", "--type=merge", "-p",
			`{"spec":{"template":{"metadata":{"name":"x"}}}}`)...), "metadata.name cannot be changed")
	require.Contains(t,
		h.Fails(at("ctl", "create", "-f",
			file("boat.yaml",
				"{apiVersion: kontrol.coracle.dev/v1alpha1, kind: Cluster, metadata: {name: boat}, spec: {pull: true}}"))...),
		"agents connect to the API servers of Coracle alone")
	kubectl("patch", "kres", "greeting", "--type=merge", "-p",
		`{"spec":{"dependsOn":["greeting"],"template":{"data":{"hello":"never"}}}}`)
	kubectl("wait", "--for=jsonpath={.status.state}=OutOfSync", "--timeout=120s", "kres/greeting")
	require.Contains(t, kubectl("get", "kres", "greeting", "-o", "jsonpath={.status.message}"),
		"a resource cannot depend on itself")
	require.Equal(t, "<world>", hello())

	// The operator is killed. The next one applies an edit made meanwhile.
	kill()
	kubectl("patch", "kres", "greeting", "--type=merge", "-p",
		`{"spec":{"dependsOn":null,"template":{"data":{"hello":"again"}}}}`)
	kill = operator()
	kubectl("wait", "--for=jsonpath={.data.hello}=again", "--timeout=120s", "configmap/greeting")
	wait("greeting")

	// A Bundle. Upstream's garbage collector deletes its Resources with it.
	dir := filepath.Join(h.Home, "shop")
	require.NoError(t, os.Mkdir(dir, 0o700))
	for name, wave := range map[string]string{"one": "0", "two": "1"} {
		require.NoError(t,
			os.WriteFile(filepath.Join(dir, name+".yaml"),
				[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+
					", namespace: default, annotations: {kontrol/wave: '"+wave+"'}}\ndata: {a: <b>}\n"), 0o600))
	}
	h.Run(at("kontrol", "push", dir, "--cluster", "this")...)
	wait("bundle/shop")
	kubectl("delete", "bundles.kontrol.coracle.dev", "shop")
	kubectl("wait", "--for=delete", "--timeout=120s", "configmap/one", "configmap/two")
	kubectl("delete", "kres", "greeting")
	require.NotContains(t, kubectl("get", "configmaps", "-o", "name"), "greeting")
	require.Eventually(t, func() bool {
		return kubectl("get", "appliedstates,currentstates", "-o", "name") == ""
	}, host.Patience, 50*time.Millisecond)

	// The upstream server is a cluster of a Coracle hub.
	hub := h
	hub.Start()
	hub.Run("kontrol", "clusters", "add", "up", "--kubeconfig", foreign.Kubeconfig)
	hub.Apply(`
apiVersion: kontrol.coracle.dev/v1alpha1
kind: Resource
metadata: {name: web}
spec:
  clusterName: up
  mode: Enforce
  template: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: default}, spec: {replicas: 0, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "0.1"}}}]}}}}
`)
	hub.Run("kontrol", "wait", "web")
	require.Empty(t, hub.Run("kontrol", "diff", "web"), "defaults and quantities are no difference")
	kubectl("patch", "deployment", "web", "-p", `{"spec":{"minReadySeconds":7,"replicas":3}}`)
	kubectl("wait", "--for=jsonpath={.spec.replicas}=0", "--timeout=120s", "deployment/web")
	hub.Run("kontrol", "wait", "web")
	require.Equal(t, "", kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.minReadySeconds}"),
		"what others added is removed")
	hub.Ctl("delete kres web")
	require.NotContains(t, kubectl("get", "deployments", "-o", "name"), "web")
}

func withToken(t *testing.T, kubeconfig, token string) string {
	t.Helper()
	c, err := clientcmd.LoadFromFile(kubeconfig)
	require.NoError(t, err)
	for name := range c.AuthInfos {
		c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	path := filepath.Join(t.TempDir(), "token.conf")
	require.NoError(t, clientcmd.WriteToFile(*c, path))
	return path
}
