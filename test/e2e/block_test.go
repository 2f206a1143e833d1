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
kind: Pod
metadata: {name: raw}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.36
    command: [sleep, "100000"]
    volumeDevices: [{name: local, devicePath: /dev/one}, {name: csi, devicePath: /dev/two}]
  - name: reader
    image: busybox:1.36
    command: [sleep, "100000"]
    volumeDevices: [{name: read, devicePath: /dev/one}]
  volumes:
  - {name: local, persistentVolumeClaim: {claimName: local}}
  - {name: read, persistentVolumeClaim: {claimName: local, readOnly: true}}
  - {name: csi, persistentVolumeClaim: {claimName: csi}}
`

// TestBlockVolumes: containers get block volumes as devices, of local volumes and of a driver, with no more access than they asked for, and the
// binary is killed while they are in use.
func TestBlockVolumes(t *testing.T) {
	h := host.New(t)
	devices := make([]string, 2)
	for i := range devices {
		image := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(image, make([]byte, 16<<20), 0o600))
		devices[i] = strings.TrimSpace(host.System(t, "losetup", "--find", "--show", image))
		t.Cleanup(func() { host.System(t, "losetup", "--detach", devices[i]) })
	}
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
	h.Apply(strings.Replace(blockManifest, "DEVICE", devices[0], 1))
	h.Ctl("wait pod/raw --for=condition=Ready --timeout=90s")
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
	require.Equal(t, "written", h.Run("ctl", "exec", "raw", "-c", "reader", "--", "sh", "-c", "dd if=/dev/one bs=7 count=1 2>/dev/null"))
	require.Contains(t, h.Fails("ctl", "exec", "raw", "-c", "reader", "--", "sh", "-c", "echo x > /dev/one"), "not permitted")
	require.Contains(t, h.Fails("ctl", "exec", "raw", "-c", "reader", "--", "ls", "/dev/two"), "No such file")

	h.Kill()
	h.Run("start")
	require.Equal(t, "written", h.Run("ctl", "exec", "raw", "-c", "c", "--", "sh", "-c", "dd if=/dev/two bs=7 count=1 2>/dev/null"))
	h.Ctl("delete pod raw --timeout=60s")
	require.Eventually(t, func() bool { return count(d.Calls(), "NodeUnstageVolume") == 1 }, host.Patience, 20*time.Millisecond)
	require.Equal(t, 1, count(d.Calls(), "NodeUnpublishVolume"))
	require.Eventually(t, func() bool { // the driver's part was the last one
		left, err := os.ReadDir(filepath.Join(h.DataDir, "agent", "pods"))
		return err == nil && len(left) == 0
	}, host.Patience, 20*time.Millisecond)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), filepath.Join(root, "p"))
}
