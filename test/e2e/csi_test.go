package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/csidriver"
	"github.com/coracle-dev/coracle/test/host"
)

const csiManifest = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: d.example.com}
spec: {podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  csi: {driver: d.example.com, volumeHandle: disk-1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: pv, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 4242}
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "echo written > /data/file; sleep 100000"]
    volumeMounts: [{name: data, mountPath: /data}, {name: inline, mountPath: /inline}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: claim}}
  - {name: inline, csi: {driver: d.example.com, volumeAttributes: {a: b}}}
`

// TestCSI follows the life of a CSI driver's volumes on the built binary, which is killed while they are in use.
// The test acts as the driver, and as the controller that attaches its volumes.
func TestCSI(t *testing.T) {
	h := host.New(t)
	h.Start()
	root := filepath.Join(h.DataDir, "agent", "kubelet")
	public := root
	if target, err := os.Readlink("/var/lib/kubelet"); err == nil && target == root {
		public = "/var/lib/kubelet"
	}
	d := &csidriver.Driver{
		Name: "d.example.com", Kubelet: root, Public: public, Data: t.TempDir(), MaxVolumes: 3,
		Topology:     map[string]string{"d.example.com/zone": "z"},
		Capabilities: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
	require.NoError(t, d.Start())
	t.Cleanup(d.Stop)
	h.Shows("d.example.com=node-of-d.example.com=d.example.com/zone=3",
		"get csinode "+h.Name+
			" -o jsonpath={range.spec.drivers[*]}{.name}={.nodeID}={.topologyKeys[0]}={.allocatable.count}{end}")
	require.Equal(t, "z", h.Ctl("get node "+h.Name+` -o jsonpath={.metadata.labels.d\.example\.com/zone}`))
	h.Apply(csiManifest)
	bind(h)
	h.Shows("pv/"+h.Name+"/d.example.com",
		"get volumeattachments -o "+
			"jsonpath={range.items[*]}{.spec.source.persistentVolumeName}/{.spec.nodeName}/{.spec.attacher}{end}")
	attachment := strings.TrimSpace(h.Ctl("get volumeattachments -o name"))
	require.NotContains(t, d.Calls(), "NodeStageVolume", "it is not attached yet")
	h.Run("ctl", "patch", attachment, "--subresource=status", "--type=merge", "-p",
		`{"status":{"attached":true,"attachmentMetadata":{"device":"x"}}}`)
	h.Ctl("wait pod/writer --for=condition=Ready --timeout=120s")
	file := filepath.Join(d.Data, "disk-1", "file")
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(file)
		return err == nil && string(data) == "written\n"
	}, host.Patience, 10*time.Millisecond)
	require.Equal(t, map[string]string{"device": "x"},
		d.Last("NodeStageVolume").(*csi.NodeStageVolumeRequest).PublishContext)
	const unique = "kubernetes.io/csi/d.example.com^disk-1"
	for _, field := range []string{"volumesInUse", "volumesAttached[*].name"} {
		h.Shows(unique, "get node "+h.Name+" -o jsonpath={.status."+field+"}")
	}

	csiSnapshots(t, h) // csiSnapshots kills the server, which leaves the volume mounted
	h.Ctl("wait pod/writer --for=condition=Ready --timeout=120s")
	require.Equal(t, "written\n", h.Ctl("exec writer -- cat /data/file"))
	require.Equal(t, 1, count(d.Calls(), "NodeStageVolume"), "the agent that was killed left the volume mounted")

	h.Ctl("delete pod writer --wait=false")
	h.Kill()
	h.Start()
	h.Ctl("wait pod/writer --for=delete --timeout=120s")
	// A grace period of 0 deletes the pod object at once. The next agent may then find the volumes without a pod,
	// and before the driver has registered again.
	require.Eventually(t, func() bool {
		calls := d.Calls()
		return count(calls, "NodeUnstageVolume") > 0 && count(calls, "NodeUnpublishVolume") >= 2
	}, host.Patience, 10*time.Millisecond, "again by the next agent, if it was killed while it waited for the answer")
	calls := d.Calls()
	require.Equal(t, 2, count(calls, "NodePublishVolume"))
	require.FileExists(t, file)
	require.Eventually(t, func() bool {
		return h.Ctl("get volumeattachments -o name") == ""
	}, host.Patience, 50*time.Millisecond, "it is detached when no pod uses it")
	require.Eventually(t, func() bool {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		return err == nil && !strings.Contains(string(mounts), filepath.Join(root, "p"))
	}, host.Patience, 10*time.Millisecond, fmt.Sprint(calls))
}

// bind binds the claim to the volume, as the persistent volume controller does.
func bind(h *host.Host) {
	uid := h.Ctl("get pvc claim -o jsonpath={.metadata.uid}")
	h.Run("ctl", "patch", "pv", "pv", "--type=merge", "-p",
		`{"spec":{"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":"default","name":"claim","uid":"`+
			uid+`"}}}`)
	h.Run("ctl", "patch", "pvc", "claim", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Bound","capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"]}}`)
}

func count(all []string, name string) (n int) {
	for _, s := range all {
		if s == name {
			n++
		}
	}
	return n
}
