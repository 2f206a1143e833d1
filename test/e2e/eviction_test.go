package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const greedy = `
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
  - name: a
    image: busybox:1.36
    command: [sh, -c, "dd if=/dev/zero of=/cache/file bs=64k count=32; sleep 3600"]
    volumeMounts: [{name: cache, mountPath: /cache}]
  volumes:
  - name: cache
    emptyDir: {sizeLimit: 1Mi}
---
apiVersion: v1
kind: Pod
metadata: {name: modest}
spec:
  containers: [{name: a, image: "busybox:1.36", command: [sleep, "3600"]}]
`

// TestEviction checks that the agent evicts a pod that exceeds its volume's size, and that a node short of disk
// reports that and evicts pods.
func TestEviction(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(greedy)
	h.Ctl("wait pod/greedy --for=jsonpath={.status.phase}=Failed --timeout=120s")
	require.Equal(t, "Evicted", h.Ctl("get pod greedy -o jsonpath={.status.reason}"))
	require.Contains(t, h.Ctl("describe pod greedy"), `Usage of EmptyDir volume "cache" exceeds the limit "1Mi".`)
	require.Eventually(t, func() bool {
		out, err := h.Try("ctl", "logs", "greedy")
		return err != nil && strings.Contains(out, "the container and its log were removed")
	}, host.Patience, 50*time.Millisecond)
	h.Ctl("wait pod/modest --for=condition=Ready --timeout=120s")

	require.NotContains(t, h.Run("status"), "DiskPressure")
	h.Kill()
	h.Run("start", "--eviction-hard", "nodefs.available<99.99%")
	require.Contains(t, h.Run("status"), "DiskPressure: nodefs.available was")
	h.Ctl("wait node/" + h.Name + " --for=condition=DiskPressure --timeout=120s")
	h.Ctl("wait node/" + h.Name + " --for=jsonpath={.spec.taints[0].key}=node.kubernetes.io/disk-pressure --timeout=120s")
	h.Ctl("wait pod/modest --for=jsonpath={.status.reason}=Evicted --timeout=120s")
	require.Contains(t, h.Ctl("get pod modest -o jsonpath={.status.message}"),
		"The node was low on resource: ephemeral-storage.")
}
