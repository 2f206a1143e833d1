package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	draplugin "k8s.io/kubelet/pkg/apis/dra/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/coracle-dev/coracle/test/dradriver"
	"github.com/coracle-dev/coracle/test/host"
)

const deviceManifest = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {extendedResourceName: example.com/gpu, selectors: [{cel: {expression: 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "a1"'}}]}
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
  - {name: gpu-2, attributes: {model: {string: c3}}, bindsToNode: true, bindingConditions: [example.com/attached], bindingFailureConditions: [example.com/broken]}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: slow}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "c3"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: slow}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: slow}}]}}
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

const extendedPod = `
apiVersion: v1
kind: Pod
metadata: {name: extended}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "echo $GPU; cat /gpu/firmware; test -c /dev/gpu0 && echo device; sleep 100000"]
    resources: {limits: {example.com/gpu: 1}}
`

const slowPod = `
apiVersion: v1
kind: Pod
metadata: {name: slow}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: gpu, resourceClaimName: slow}]
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "echo $GPU; sleep 100000"]
    resources: {claims: [{name: gpu}]}
`

// TestResourceClaims follows the life of a device that a driver prepares, on the built binary, which is killed
// while the device is in use. The test acts as the driver.
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
	require.NoError(t,
		os.WriteFile(cdi,
			fmt.Appendf(nil, `{"cdiVersion":"0.6.0","kind":%q,"devices":[{"name":"gpu-0","containerEdits":{"env":["GPU=gpu-0"],
		"deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/null"}],"mounts":[{"hostPath":%q,"containerPath":"/gpu/firmware","options":["ro","nosuid","nodev","bind"]}]}}]}`, kind, firmware), 0o600))
	d := &dradriver.Driver{
		Name: "gpu.example.com", Kubelet: root, Public: public,
		Devices: func(*draplugin.Claim) *draplugin.NodePrepareResourceResponse {
			return &draplugin.NodePrepareResourceResponse{
				Devices: []*draplugin.Device{{PoolName: h.Name, DeviceName: "gpu-0", CdiDeviceIds: []string{kind + "=gpu-0"}}},
			}
		},
	}
	health, changed := drahealth.HealthStatus_UNKNOWN, make(chan struct{})
	var known sync.Mutex
	is := func(now drahealth.HealthStatus) {
		known.Lock()
		defer known.Unlock()
		health = now
		close(changed)
		changed = make(chan struct{})
	}
	d.Health = func(ctx context.Context, send func(*drahealth.NodeWatchResourcesResponse) error) error {
		for {
			known.Lock()
			now, next := health, changed
			known.Unlock()
			if now != drahealth.HealthStatus_UNKNOWN { // also on a stream that begins later
				if err := send(&drahealth.NodeWatchResourcesResponse{
					Devices: []*drahealth.DeviceHealth{
						{Device: &drahealth.DeviceIdentifier{PoolName: h.Name, DeviceName: "gpu-0"}, Health: now,
							HealthCheckTimeoutSeconds: 600, Message: "as the test says"},
					},
				}); err != nil {
					return err
				}
			}
			select {
			case <-next:
			case <-ctx.Done():
				return nil
			}
		}
	}
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
	const status = "get pod first -o jsonpath={.status.containerStatuses[0].allocatedResourcesStatus}"
	eventually(`"health":"Unknown"`, status)
	is(drahealth.HealthStatus_UNHEALTHY)
	eventually(`[{"name":"claim:gpu","resources":[{"health":"Unhealthy","message":"as the test says","resourceID":"`+kind+
		`=gpu-0"}]}]`, status)

	// The second pod waits for the device, even over a restart.
	h.Apply(fmt.Sprintf(devicePod, "second"))
	eventually("cannot allocate all claims", "get pod second -o jsonpath={.status.conditions[0].message}")
	require.Contains(t, h.Ctl("inspect schedule second"), "cannot allocate all claims")
	h.Kill()
	h.Start()
	eventually("Running", "get pod first -o jsonpath={.status.phase}")
	require.Len(t, d.Calls(), 1, "the claim is prepared already")
	h.Ctl("delete pod first --wait=true")
	eventually("gpu-0\nloaded\ndevice\n", "logs second")
	require.Equal(t, "default/second c: gpu.example.com/"+h.Name+"/gpu-0 "+kind+"=gpu-0", whoHas(t, root, "gpu-0"))
	calls := d.Calls()
	require.Len(t, calls, 3)
	require.True(t, strings.HasPrefix(calls[1], "unprepare first-gpu-"), calls)
	require.True(t, strings.HasPrefix(calls[2], "prepare second-gpu-"), calls)

	// A pod that requests the class's extended resource waits for the device, and gets it by a generated claim.
	h.Apply(extendedPod)
	eventually("cannot allocate all claims", "get pod extended -o jsonpath={.status.conditions[0].message}")
	h.Ctl("delete pod second --wait=true")
	eventually("gpu-0\nloaded\ndevice\n", "logs extended")
	require.Equal(t, "default/extended c: gpu.example.com/"+h.Name+"/gpu-0 "+kind+"=gpu-0", whoHas(t, root, "gpu-0"))
	require.Contains(t, h.Ctl("get resourceclaims"), "extended-extended-resources-")
	require.Contains(t, h.Ctl("get pod extended -o jsonpath={.status.extendedResourceClaimStatus.resourceClaimName}"),
		"extended-extended-resources-")

	// A pod waits until its device's driver reports the device ready, even over a restart of the scheduler.
	h.Apply(slowPod)
	eventually("waiting for binding conditions for device on node "+h.Name, "get events")
	require.Contains(t, h.Ctl("get resourceclaim slow"), "allocated,reserved")
	h.Kill()
	h.Start()
	eventually("Running", "get pod extended -o jsonpath={.status.phase}")
	require.Len(t, d.Calls(), 5, "prepared once, and the second pod's unprepared")
	require.Empty(t, h.Ctl("get pod slow -o jsonpath={.spec.nodeName}"))
	h.Ctl(fmt.Sprintf(`patch resourceclaim slow --subresource=status --type=merge -p {"status":{"devices":[{"driver":"gpu.example.com","pool":%q,"device":"gpu-2",`+
		`"conditions":[{"type":"example.com/attached","status":"True","reason":"Tested","message":"","lastTransitionTime":"2026-11-23T00:00:00Z"}]}]}}`, h.Name))
	eventually("gpu-0\n", "logs slow")
	h.Ctl("delete pod slow extended --wait=true")
	h.Ctl("delete resourceclaim slow --wait=true")
	eventually("No resources found", "get resourceclaims")

	// A stopped driver's devices disappear.
	d.Stop()
	eventually("No resources found", "get resourceslices")
}

// whoHas returns the containers that have a device. It asks the agent's pod resources API, like a metrics exporter.
func whoHas(t *testing.T, kubelet, device string) string {
	conn, err := grpc.NewClient("unix://"+filepath.Join(kubelet, "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(t.Context(), &podresources.ListPodResourcesRequest{},
		grpc.WaitForReady(true))
	require.NoError(t, err)
	var found []string
	for _, p := range list.PodResources {
		for _, c := range p.Containers {
			for _, claim := range c.DynamicResources {
				for _, d := range claim.ClaimResources {
					if d.DeviceName == device {
						found = append(found,
							fmt.Sprintf("%s/%s %s: %s/%s/%s %s", p.Namespace, p.Name, c.Name, d.DriverName, d.PoolName, d.DeviceName,
								d.CdiDevices[0].Name))
					}
				}
			}
		}
	}
	return strings.Join(found, ", ")
}
