package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	draplugin "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/coracle-dev/coracle/test/dradriver"
	"github.com/coracle-dev/coracle/test/host"
)

const deviceManifest = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "a1"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus}
spec:
  driver: gpu.example.com
  nodeName: %[1]s
  pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: a1}}}
  - {name: gpu-1, attributes: {model: {string: b2}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
`

const devicePod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "echo $GPU; cat /gpu/firmware; test -c /dev/gpu0 && echo device; sleep 100000"]
    resources: {claims: [{name: gpu}]}
`

// TestResourceClaims is the life of a device that a driver prepares, on the built binary, which is killed while the device is in use.
// The test is the driver.
func TestResourceClaims(t *testing.T) {
	h := host.New(t)
	h.Start()
	root := filepath.Join(h.DataDir, "agent", "kubelet")
	public := root
	if target, err := os.Readlink("/var/lib/kubelet"); err == nil && target == root {
		public = "/var/lib/kubelet"
	}
	firmware := filepath.Join(t.TempDir(), "firmware")
	require.NoError(t, os.WriteFile(firmware, []byte("loaded\n"), 0o600))
	kind := "coracle-test-" + h.Name + ".example.com/gpu"
	require.NoError(t, os.MkdirAll("/var/run/cdi", 0o755))
	cdi := filepath.Join("/var/run/cdi", "coracle-test-"+h.Name+".json")
	t.Cleanup(func() { _ = os.Remove(cdi) })
	require.NoError(t, os.WriteFile(cdi, fmt.Appendf(nil, `{"cdiVersion":"0.6.0","kind":%q,"devices":[{"name":"gpu-0","containerEdits":{"env":["GPU=gpu-0"],
		"deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/null"}],"mounts":[{"hostPath":%q,"containerPath":"/gpu/firmware","options":["ro","nosuid","nodev","bind"]}]}}]}`, kind, firmware), 0o600))
	d := &dradriver.Driver{Name: "gpu.example.com", Kubelet: root, Public: public, Devices: func(*draplugin.Claim) *draplugin.NodePrepareResourceResponse {
		return &draplugin.NodePrepareResourceResponse{Devices: []*draplugin.Device{{PoolName: h.Name, DeviceName: "gpu-0", CdiDeviceIds: []string{kind + "=gpu-0"}}}}
	}}
	require.NoError(t, d.Start())
	t.Cleanup(d.Stop)
	h.Apply(fmt.Sprintf(deviceManifest, h.Name))
	h.Apply(fmt.Sprintf(devicePod, "first"))
	eventually := func(want, line string) {
		t.Helper()
		require.Eventually(t, func() bool {
			out, err := h.Try(append([]string{"ctl"}, strings.Fields(line)...)...)
			return err == nil && strings.Contains(out, want)
		}, host.Patience, 50*time.Millisecond, line)
	}
	eventually("gpu-0\nloaded\ndevice\n", "logs first")
	require.Contains(t, h.Ctl("get resourceclaims"), "allocated,reserved")

	// The second pod waits for the device, also over a restart.
	h.Apply(fmt.Sprintf(devicePod, "second"))
	eventually("cannot allocate all claims", "get pod second -o jsonpath={.status.conditions[0].message}")
	require.Contains(t, h.Ctl("inspect schedule second"), "cannot allocate all claims")
	h.Kill()
	h.Start()
	eventually("Running", "get pod first -o jsonpath={.status.phase}")
	require.Len(t, d.Calls(), 1, "the claim is prepared already")
	h.Ctl("delete pod first --wait=true")
	eventually("gpu-0\nloaded\ndevice\n", "logs second")
	calls := d.Calls()
	require.Len(t, calls, 3)
	require.True(t, strings.HasPrefix(calls[1], "unprepare first-gpu-"), calls)
	require.True(t, strings.HasPrefix(calls[2], "prepare second-gpu-"), calls)
	h.Ctl("delete pod second --wait=true")
	eventually("No resources found", "get resourceclaims")

	// The devices of a driver that is gone are gone.
	d.Stop()
	eventually("No resources found", "get resourceslices")
}
