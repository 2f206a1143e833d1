package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/test/csidriver"
	"github.com/coracle-dev/coracle/test/host"
)

const blockManifest = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: d.example.com}
spec: {attachRequired: false}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: local}
spec:
  capacity: {storage: 16Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: devices
  local: {path: DEVICE}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: Exists}]}]}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: csi}
spec:
  capacity: {storage: 16Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: driver
  csi: {driver: d.example.com, volumeHandle: disk}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: local}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: devices, resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: csi}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: driver, resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: small}
spec:
  capacity: {storage: 4Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: small
  local: {path: SMALL}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: Exists}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: small}
spec: {accessModes: [ReadWriteOnce], storageClassName: small, resources: {requests: {storage: 4Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: made}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: raw}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.36
    command: [sleep, "100000"]
    volumeDevices: [{name: local, devicePath: /dev/one}, {name: csi, devicePath: /dev/two}, {name: made, devicePath: /dev/three}]
    volumeMounts: [{name: small, mountPath: /small}]
  - name: reader
    image: busybox:1.36
    command: [sleep, "100000"]
    volumeDevices: [{name: read, devicePath: /dev/one}]
  volumes:
  - {name: local, persistentVolumeClaim: {claimName: local}}
  - {name: small, persistentVolumeClaim: {claimName: small}}
  - {name: read, persistentVolumeClaim: {claimName: local, readOnly: true}}
  - {name: csi, persistentVolumeClaim: {claimName: csi}}
  - {name: made, persistentVolumeClaim: {claimName: made}}
`

const madeManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: copied}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  resources: {requests: {storage: 32Mi}}
  dataSource: {kind: PersistentVolumeClaim, name: made}
`

// TestBlockVolumes gives containers block volumes as devices: local volumes, a driver's, and provisioned ones.
// Containers get no more access than they asked for. The binary is killed while the volumes are in use. Provisioned
// volumes are expanded and copied, and leave nothing behind. A full volume is reported, and again when it has space.
func TestBlockVolumes(t *testing.T) {
	h := host.New(t)
	devices := make([]string, 2)
	for i := range devices {
		image := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(image, make([]byte, 16<<20), 0o600))
		devices[i] = strings.TrimSpace(host.System(t, "losetup", "--find", "--show", image))
		t.Cleanup(func() { host.System(t, "losetup", "--detach", devices[i]) })
	}
	small := t.TempDir()
	host.System(t, "mount", "-t", "tmpfs", "-o", "size=4m", "small", small)
	t.Cleanup(func() { host.System(t, "umount", "--lazy", small) })
	h.Start()
	root := filepath.Join(h.DataDir, "agent", "kubelet")
	public := root
	if target, err := os.Readlink("/var/lib/kubelet"); err == nil && target == root {
		public = "/var/lib/kubelet"
	}
	d := &csidriver.Driver{Name: "d.example.com", Kubelet: root, Public: public, Data: t.TempDir(),
		Capabilities: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}}
	var st unix.Stat_t
	require.NoError(t, unix.Stat(devices[1], &st))
	require.NoError(t, unix.Mknod(filepath.Join(d.Data, "disk"), unix.S_IFBLK|0o600, int(st.Rdev)))
	require.NoError(t, d.Start())
	t.Cleanup(d.Stop)
	h.Apply(strings.NewReplacer("DEVICE", devices[0], "SMALL", small).Replace(blockManifest))
	h.Ctl("wait pod/raw --for=condition=Ready --timeout=120s")
	says := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return strings.Contains(h.Ctl("get events"), what)
		}, host.Patience, 100*time.Millisecond)
	}
	require.Contains(t,
		h.Fails("ctl", "exec", "raw", "-c", "c", "--", "dd", "if=/dev/zero", "of=/small/file", "bs=1M", "count=5"),
		"No space left on device")
	says("Volume small: the volume of claim small is full: 0 and ")
	h.Ctl("exec raw -c c -- rm /small/file")
	for i, name := range []string{"/dev/one", "/dev/two"} {
		h.Run("ctl", "exec", "raw", "-c", "c", "--", "sh", "-c", "echo written | dd of="+name+" conv=fsync 2>/dev/null")
		file, err := os.Open(devices[i])
		require.NoError(t, err)
		text := make([]byte, 8)
		_, err = file.Read(text)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		require.Equal(t, "written\n", string(text))
	}
	require.Equal(t, "written",
		h.Run("ctl", "exec", "raw", "-c", "reader", "--", "sh", "-c", "dd if=/dev/one bs=7 count=1 2>/dev/null"))
	require.Contains(t, h.Fails("ctl", "exec", "raw", "-c", "reader", "--", "sh", "-c", "echo x > /dev/one"),
		"not permitted")
	require.Contains(t, h.Fails("ctl", "exec", "raw", "-c", "reader", "--", "ls", "/dev/two"), "No such file")

	h.Run("ctl", "exec", "raw", "-c", "c", "--", "sh", "-c", "echo written | dd of=/dev/three conv=fsync 2>/dev/null")
	require.Equal(t, "16777216\n",
		h.Run("ctl", "exec", "raw", "-c", "c", "--", "sh", "-c", "losetup -d /dev/three; wc -c < /dev/three"),
		"it cannot be given away")
	h.Ctl("patch pvc made -p {\"spec\":{\"resources\":{\"requests\":{\"storage\":\"1Pi\"}}}}")
	says("1024Ti more are wanted, and ")
	h.Ctl("patch pvc made -p {\"spec\":{\"resources\":{\"requests\":{\"storage\":\"32Mi\"}}}}") // cancels the expansion
	h.Ctl("wait pvc/made --for=jsonpath={.status.capacity.storage}=32Mi --timeout=120s")
	require.Equal(t, "33554432\n", h.Run("ctl", "exec", "raw", "-c", "c", "--", "sh", "-c", "wc -c < /dev/three"))

	says("Volume small: the volume of claim small has room again: 4Mi are free")
	metrics := h.Ctl("get --raw /api/v1/nodes/" + h.Name + "/proxy/metrics")
	require.Contains(t, metrics,
		`kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="small"} 4.194304e+06`)
	require.Contains(t, metrics,
		`kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="made"} 3.3554432e+07`)
	require.NotContains(t, metrics,
		`kubelet_volume_stats_available_bytes{namespace="default",persistentvolumeclaim="made"}`, "it is not known")
	require.Contains(t, h.Ctl("get --raw /api/v1/nodes/"+h.Name+"/proxy/stats/summary"),
		`"pvcRef":{"name":"small","namespace":"default"}`)
	h.Kill()
	h.Run("start")
	for _, name := range []string{"two", "three"} {
		require.Equal(t, "written",
			h.Run("ctl", "exec", "raw", "-c", "c", "--", "sh", "-c", "dd if=/dev/"+name+" bs=7 count=1 2>/dev/null"))
	}
	h.Ctl("delete pod raw --timeout=120s")
	require.Eventually(t, func() bool {
		return count(d.Calls(), "NodeUnstageVolume") == 1
	}, host.Patience, 20*time.Millisecond)
	require.Equal(t, 1, count(d.Calls(), "NodeUnpublishVolume"))
	require.Eventually(t, func() bool { // the agent removes the driver's part last
		left, err := os.ReadDir(filepath.Join(h.DataDir, "agent", "pods"))
		return err == nil && len(left) == 0
	}, host.Patience, 20*time.Millisecond)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), filepath.Join(root, "p"))

	h.Apply(madeManifest)
	h.Ctl("wait pvc/copied --for=jsonpath={.status.phase}=Bound --timeout=120s")
	images := localVolumes(t, h)
	require.Len(t, images, 2)
	for _, image := range images {
		file, err := os.Open(image)
		require.NoError(t, err)
		text := make([]byte, 7)
		_, err = file.Read(text)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		require.Equal(t, "written", string(text))
	}
	volumes := h.Ctl("get pvc made copied -o jsonpath={.items[*].spec.volumeName}")
	h.Ctl("delete pvc made copied --timeout=120s")
	h.Ctl("wait pv " + volumes + " --for=delete --timeout=120s")
	require.Empty(t, localVolumes(t, h))
	require.Eventually(t, func() bool { // programs that scan new devices may have one open
		bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		require.NoError(t, err)
		for _, path := range bound {
			if file, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(file), h.DataDir) {
				return false
			}
		}
		return true
	}, host.Patience, 20*time.Millisecond)
}
