package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const nested = `
apiVersion: v1
kind: Pod
metadata: {name: nested}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: coracle
    image: coracle:nested
    imagePullPolicy: Never
    securityContext: {privileged: true}
    readinessProbe: {exec: {command: [coracle, status]}, timeoutSeconds: 30, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /var/lib/coracle}]
  volumes: [{name: data, emptyDir: {}}]
`

// TestNested checks that a privileged pod with Coracle's image is a cluster, which serves hello, and that nothing of
// it is left when the pod is deleted.
func TestNested(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "coracle.tar")
	build := exec.Command("go", "run", "-trimpath", "./hack/images/coracle",
		"-name", "docker.io/library/coracle:nested", archive, "bin/coracle")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	h := host.New(t)
	h.Start()
	h.Run("image", "load", archive)
	h.Apply(nested)
	h.Ctl("wait pod/nested --for=condition=Ready --timeout=120s")
	for file, command := range map[string]string{
		"dist/images/hello.tar":         "image load -",
		"manifests/examples/hello.yaml": "ctl apply -f -",
	} {
		data, err := os.ReadFile(filepath.Join("../..", file))
		require.NoError(t, err)
		h.Pipe(string(data), append(strings.Fields("ctl exec -i nested -- coracle"), strings.Fields(command)...)...)
	}
	h.Ctl("exec nested -- coracle ctl rollout status deployment/hello --timeout=120s")
	page := h.Ctl("exec nested -- coracle ctl get --raw /api/v1/namespaces/default/services/hello/proxy/")
	require.Contains(t, page, "Hello from a coracle")
}
