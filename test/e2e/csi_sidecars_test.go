package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestSidecars follows the life of volumes of a driver with upstream's own sidecars, deployed like the public hostpath
// driver. The driver's pod, the server and the node are restarted while the volumes are in use. In the end nothing of
// the volumes may remain. It uses the hostpath driver if an image of it exists, otherwise the tests' own.
func TestSidecars(t *testing.T) {
	archives := csiImages(t)
	h := host.New(t)
	h.Start()
	name, containers := "d.example.com", ourDriver
	if strings.Contains(h.Run(append([]string{"image", "load"}, archives...)...), "/hostpathplugin:latest") {
		name, containers = "hostpath.csi.k8s.io", hostPathDriver
	}
	root := filepath.Join(h.DataDir, "agent", "kubelet")
	data := t.TempDir()
	fill := func(manifest string) string {
		return strings.NewReplacer("KUBELET", root, "DATA", data, "d.example.com", name).Replace(strings.Replace(manifest,
			"DRIVER", containers, 1))
	}
	until := func(want, line string) {
		t.Helper()
		require.Eventually(t, func() bool {
			out, err := h.Try(append([]string{"ctl"}, strings.Fields(line)...)...)
			return err == nil && out == want
		}, 2*host.Patience, 50*time.Millisecond, line)
	}
	h.Apply(fill(sidecars))
	h.Ctl("rollout status -n csi sts/driver --timeout=80s")
	until(name, "get csinode "+h.Name+" -o jsonpath={.spec.drivers[*].name}")
	until("10Gi", `get csistoragecapacities -n csi -o jsonpath={.items[?(@.storageClassName=="later")].capacity}`)

	h.Apply(fill(sidecarsPods))
	h.Ctl("wait pod/writer pod/block --for=condition=Ready --timeout=80s")
	h.Run("ctl", "exec", "writer", "--", "sh", "-c",
		"echo kept > /data/file && echo late > /late/file && echo inline > /inline/file")
	h.Run("ctl", "exec", "block", "--", "sh", "-c", "echo raw | dd of=/dev/raw conv=fsync 2>/dev/null")
	require.Equal(t, "4242\n", h.Ctl("exec writer -- stat -c %g /data/file"))
	require.Equal(t, "true true true", h.Ctl("get volumeattachments -o jsonpath={.items[*].status.attached}"))
	h.Apply(fill(sidecarsRefused))
	until("Unschedulable", `get pod second -o jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}`)
	require.Contains(t, h.Ctl("get events"),
		"PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
	until("Unschedulable", `get pod greedy -o jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}`)
	require.Contains(t, h.Ctl("get events"), "node(s) did not have enough free storage")
	h.Ctl("delete pod greedy second --timeout=60s")
	h.Ctl("delete pvc large --timeout=60s")

	t.Run("expansion", func(t *testing.T) {
		h.Run("ctl", "patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}`)
		h.Run("ctl", "patch", "pvc", "raw", "-p", `{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}`)
		until("32Mi 32Mi", "get pvc data raw -o jsonpath={.items[*].status.capacity.storage}")
		require.Empty(t, h.Ctl(`get pvc data raw -o jsonpath={.items[*].status.conditions[?(@.type!="Unused")].type}`))
	})
	t.Run("attributes", func(t *testing.T) {
		h.Run("ctl", "patch", "pvc", "data", "-p", `{"spec":{"volumeAttributesClassName":"gold"}}`)
		until("gold", "get pvc data -o jsonpath={.status.currentVolumeAttributesClassName}")
	})
	t.Run("snapshot, restore and clone", func(t *testing.T) {
		h.Apply(fill(sidecarsCopies))
		until("true", "get vs first -o jsonpath={.status.readyToUse}")
		h.Ctl("wait pod/reader --for=condition=Ready --timeout=80s")
		require.Equal(t, "kept\nraw\n",
			h.Run("ctl", "exec", "reader", "--", "sh", "-c", "cat /restored/file; dd if=/dev/clone bs=4 count=1 2>/dev/null"))
	})
	t.Run("group of snapshots", func(t *testing.T) {
		h.Ctl("label pvc data late group=both")
		h.Apply(sidecarsGroup)
		h.Kill() // at any stage
		h.Run("start")
		h.Ctl("wait vgs/both --for=jsonpath={.status.readyToUse}=true --timeout=160s")
		until("both both", "get vs -o jsonpath={.items[*].status.volumeGroupSnapshotName}")
		h.Apply(strings.ReplaceAll(sidecarsRegained, "SNAPSHOT",
			h.Ctl(`get vs -o jsonpath={.items[?(@.spec.source.persistentVolumeClaimName=="late")].metadata.name}`)))
		h.Ctl("wait pod/regained --for=condition=Ready --timeout=160s")
		require.Equal(t, "late\n", h.Ctl("exec regained -- cat /data/file"))
		h.Ctl("delete pod regained --timeout=80s")
		h.Ctl("delete pvc regained --timeout=80s")
		h.Ctl("delete vgs both --timeout=80s")
		until("first", "get vs -o jsonpath={.items[*].metadata.name}")
		until("", `get volumegroupsnapshotcontents -o name`)
	})
	h.Ctl("delete pod reader --timeout=80s")
	if name != "d.example.com" { // after a restart the hostpath driver does not find its loop devices
		h.Ctl("delete pod block --timeout=80s")
		h.Ctl("delete pvc raw clone --timeout=80s")
		until("", `get pv -o jsonpath={.items[?(@.spec.volumeMode=="Block")].metadata.name}`)
	}
	kept := func() {
		t.Helper()
		require.Equal(t, "kept\nlate\n", h.Ctl("exec writer -- cat /data/file /late/file"))
		if name == "d.example.com" {
			require.Equal(t, "raw\n", h.Run("ctl", "exec", "block", "--", "sh", "-c", "dd if=/dev/raw bs=4 count=1 2>/dev/null"))
		}
	}
	t.Run("the driver's pod restarts", func(t *testing.T) {
		h.Ctl("delete pod -n csi driver-0 --force --grace-period=0")
		h.Ctl("rollout status -n csi sts/driver --timeout=80s")
		kept()
	})
	t.Run("kill -9", func(t *testing.T) {
		h.Kill()
		h.Run("start")
		kept()
		require.Equal(t, "inline\n", h.Ctl("exec writer -- cat /inline/file"))
	})
	t.Run("the node stops and starts", func(t *testing.T) {
		h.Run("stop")
		require.Empty(t, mounts(t, root))
		h.Run("start")
		h.Ctl("wait pod --all --for=condition=Ready --timeout=80s")
		kept()
	})
	t.Run("no leftovers", func(t *testing.T) {
		h.Ctl("delete pod --all --timeout=80s")
		h.Ctl("delete vs first --timeout=80s")
		h.Ctl("delete pvc --all --timeout=80s")
		until("", "get pv,volumeattachments,volumesnapshotcontents -o name")
		require.Eventually(t, func() bool {
			return len(mounts(t, root)) == 0
		}, host.Patience, 20*time.Millisecond, "%v", mounts(t, root))
		left, err := os.ReadDir(data)
		require.NoError(t, err)
		for _, e := range left {
			require.True(t, e.Name() == "state.json" || strings.HasPrefix(e.Name(), "csi-"),
				"%s is left, which is neither the driver's state nor an inline volume of ours", e.Name())
		}
		require.NotContains(t, host.System(t, "losetup", "--list"), data)
	})
}

func mounts(t *testing.T, root string) (found []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, filepath.Join(root, "p")) {
			found = append(found, line)
		}
	}
	return found
}

// csiImages returns the OCI archives of the sidecars and of the tests' driver, and the archives in the folder
// CSI_IMAGES: upstream's hostpathplugin, csi-node-driver-registrar and livenessprobe, tagged latest.
func csiImages(t *testing.T) []string {
	t.Helper()
	if os.Getenv("CORACLE_TEST_CSI") == "" {
		t.Skip("CSI's sidecars are compiled for minutes: `make csi`, a part of make nightly, runs this test with " +
			"CORACLE_TEST_CSI=1")
	}
	all, err := filepath.Glob(filepath.Join(host.Root(t), "dist/images-csi/*.tar"))
	require.NoError(t, err)
	require.NotEmpty(t, all, "run `make csi-images`")
	if dir := os.Getenv("CSI_IMAGES"); dir != "" {
		more, err := filepath.Glob(filepath.Join(dir, "*.tar"))
		require.NoError(t, err)
		require.NotEmpty(t, more, "CSI_IMAGES names %s, which has no OCI archives (*.tar)", dir)
		all = append(all, more...)
	}
	return all
}
