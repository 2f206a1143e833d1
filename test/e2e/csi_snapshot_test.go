package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const csiSnapshotManifest = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: snap, annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: d.example.com
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: first}
spec: {source: {persistentVolumeClaimName: claim}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: old}
spec:
  driver: d.example.com
  deletionPolicy: Retain
  source: {snapshotHandle: snap-0}
  volumeSnapshotRef: {namespace: default, name: old}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: old}
spec: {source: {volumeSnapshotContentName: old}}
`

// csiSnapshots follows the life of snapshots of a CSI driver's volume: one that is taken and one that exists
// already. The test acts as the driver's csi-snapshotter. The server is killed while the driver deletes.
func csiSnapshots(t *testing.T, h *host.Host) {
	t.Helper()
	h.Apply(csiSnapshotManifest)
	until := func(want, line string) {
		t.Helper()
		require.Eventually(t, func() bool { return h.Ctl(line) == want }, host.Patience, 50*time.Millisecond, line)
	}
	until("snap", "get volumesnapshot first -o jsonpath={.spec.volumeSnapshotClassName}")
	until("snapcontent-"+h.Ctl("get vs first -o jsonpath={.metadata.uid}"),
		"get vs first -o jsonpath={.status.boundVolumeSnapshotContentName}")
	content := h.Ctl("get vs first -o jsonpath={.status.boundVolumeSnapshotContentName}")
	require.Equal(t, "disk-1/d.example.com/Delete",
		h.Ctl("get vsc "+content+" -o jsonpath={.spec.source.volumeHandle}/{.spec.driver}/{.spec.deletionPolicy}"))
	const protected = "get pvc claim -o jsonpath={.metadata.finalizers}"
	require.Contains(t, h.Ctl(protected), "pvc-as-source-protection")
	taken := func(content, handle string) {
		h.Run("ctl", "patch", "vsc", content, "--subresource=status", "--type=merge", "-p",
			`{"status":{"snapshotHandle":"`+handle+
				`","readyToUse":true,"creationTime":1700000000000000000,"restoreSize":1073741824}}`)
	}
	taken(content, "snap-1")
	taken("old", "snap-0")
	h.Ctl("wait vs/first vs/old --for=jsonpath={.status.readyToUse}=true --timeout=120s")
	require.Equal(t, "1Gi/2023-11-14T22:13:20Z",
		h.Ctl("get vs first -o jsonpath={.status.restoreSize}/{.status.creationTime}"))
	require.Eventually(t, func() bool {
		return h.Ctl(protected) == `["kubernetes.io/pvc-protection"]`
	}, host.Patience, 50*time.Millisecond, "the claim may go")

	h.Ctl("delete vs old --timeout=120s")
	require.Equal(t, "snap-0", h.Ctl("get vsc old -o jsonpath={.status.snapshotHandle}"), "its policy is Retain")
	h.Ctl("delete vs first --wait=false")
	h.Kill()
	h.Start()
	until("yes",
		`get vsc `+content+
			` -o jsonpath={.metadata.annotations.snapshot\.storage\.kubernetes\.io/volumesnapshot-being-deleted}`)
	h.Ctl("wait vsc/" + content + " --for=jsonpath={.metadata.deletionTimestamp} --timeout=120s")
	require.NotEmpty(t, h.Ctl("get vs first -o name"), "the driver has the snapshot")
	h.Run("ctl", "patch", "vsc", content, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	h.Ctl("wait vs/first --for=delete --timeout=120s")
}
