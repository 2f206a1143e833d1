package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// metricsServer adapts upstream's manifests: the program is mounted from the machine, probes start at once, and
// metrics-server verifies the nodes with the trust bundle of their signer.
const metricsServer = `resources: [apiservice.yaml, deployment.yaml, rbac.yaml, service.yaml]
labels: [{pairs: {k8s-app: metrics-server}, includeSelectors: true}]
patches:
- target: {kind: Deployment}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/image, value: "busybox:1.36"}
    - {op: add, path: /spec/template/spec/containers/0/command, value: [/metrics-server]}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --kubelet-certificate-authority=/kubelet-ca/ca.crt}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --kubelet-request-timeout=5s}
    - {op: replace, path: /spec/template/spec/containers/0/args/4, value: --metric-resolution=10s}
    - {op: add, path: /spec/template/spec/volumes/-, value: {name: program, hostPath: {path: PROGRAM, type: File}}}
    - {op: add, path: /spec/template/spec/containers/0/volumeMounts/-, value: {name: program, mountPath: /metrics-server, readOnly: true}}
    - op: add
      path: /spec/template/spec/volumes/-
      value: {name: kubelet-ca, projected: {sources: [{clusterTrustBundle: {signerName: kubernetes.io/kubelet-serving, labelSelector: {}, path: ca.crt}}]}}
    - {op: add, path: /spec/template/spec/containers/0/volumeMounts/-, value: {name: kubelet-ca, mountPath: /kubelet-ca, readOnly: true}}
    - {op: replace, path: /spec/template/spec/containers/0/readinessProbe/initialDelaySeconds, value: 0}
    - {op: replace, path: /spec/template/spec/containers/0/readinessProbe/periodSeconds, value: 1}
`

// TestMetricsServer runs metrics-server, built from its module, as a pod behind an APIService. It reads the usage
// of nodes and pods from the agents. While it runs, kubectl top shows its numbers; afterwards Coracle's own again.
func TestMetricsServer(t *testing.T) {
	const module = "sigs.k8s.io/metrics-server"
	dir := t.TempDir()
	program := built(t, "metricsserver", module+"/cmd/metrics-server")
	manifests := filepath.Join(in(t, "metricsserver", "go", "list", "-m", "-f", "{{.Dir}}", module), "manifests/base")
	for _, name := range []string{"apiservice.yaml", "deployment.yaml", "rbac.yaml", "service.yaml"} {
		raw, err := os.ReadFile(filepath.Join(manifests, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	require.NoError(t,
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.ReplaceAll(metricsServer, "PROGRAM", program)),
			0o600))

	h := host.New(t)
	h.Start()
	h.Ctl("run busy --image=busybox:1.36 --restart=Never -- sh -c while(:)do(:);done")
	h.Ctl("wait pod/busy --for=condition=Ready --timeout=30s")
	h.Ctl("apply -k " + dir)
	// It becomes available after it has read every node twice.
	h.Ctl("wait apiservice/v1beta1.metrics.k8s.io --for=condition=Available --timeout=80s")

	list := h.Ctl("get --raw /apis/metrics.k8s.io/v1beta1/nodes")
	require.Contains(t, list, `"kind":"NodeMetricsList"`)
	require.Regexp(t, `"window":"\d+\.\d+s"`, list, "the time between two reads of metrics-server")
	require.Regexp(t, `(?m)^`+h.Name+` +\d+m +\d+% +[1-9]\d*Mi `, h.Ctl("top node"))
	require.Regexp(t, `(?m)^busy +busy +[1-9]\d*m +`, h.Ctl("top pod --containers"))
	require.Regexp(t, `(?m)^kube-system +metrics-server-\S+ +\d+m +[1-9]\d*Mi`, h.Ctl("top pod -A"))

	h.Ctl("delete -k " + dir)
	require.Regexp(t, `(?m)^`+h.Name+` +\d+m +\d+% +[1-9]\d*Mi `, h.Ctl("top node"))
}

// built compiles a program of the module in a folder and returns its path.
func built(t *testing.T, folder, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(pkg))
	in(t, folder, "env", "CGO_ENABLED=0", "go", "build", "-o", file, pkg) // static: it runs in containers
	return file
}

func in(t *testing.T, folder string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir = folder
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s: %s", strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}
