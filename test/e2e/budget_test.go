package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const guarded = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: guarded}
spec:
  replicas: 2
  selector: {matchLabels: {app: guarded}}
  template:
    metadata: {labels: {app: guarded}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: a, image: "busybox:1.36", command: [sleep, "3600"]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guarded}
spec:
  minAvailable: 2
  selector: {matchLabels: {app: guarded}}
`

// TestDrainHonoursBudgets checks that kubectl drain waits while a PodDisruptionBudget forbids evictions, and then
// completes.
func TestDrainHonoursBudgets(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(guarded)
	h.Ctl("wait pdb/guarded --for=jsonpath={.status.currentHealthy}=2 --timeout=120s")
	require.Equal(t, "0", h.Ctl("get pdb guarded -o jsonpath={.status.disruptionsAllowed}"))
	out := h.Fails("ctl", "drain", h.Name, "--timeout=10s", "--pod-selector=app=guarded")
	require.Contains(t, out, "Cannot evict pod as it would violate the pod's disruption budget.")
	require.Equal(t, "2", h.Ctl("get deployment guarded -o jsonpath={.status.availableReplicas}"))
	h.Ctl(`patch pdb guarded --type=merge -p {"spec":{"minAvailable":"0%"}}`)
	h.Ctl("wait pdb/guarded --for=jsonpath={.status.disruptionsAllowed}=2 --timeout=120s")
	require.Contains(t, h.Ctl("drain "+h.Name+" --timeout=120s --pod-selector=app=guarded"), "drained")
}
