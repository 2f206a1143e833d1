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

const localSnapshotManifest = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: before}
spec: {source: {persistentVolumeClaimName: data}}
`

const restoredManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: restored}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: cloned}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  dataSource: {kind: PersistentVolumeClaim, name: data}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: restored, persistentVolumeClaim: {claimName: restored}}
  - {name: cloned, persistentVolumeClaim: {claimName: cloned}}
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "while true; do sleep 1 & wait; done"]
    volumeMounts: [{name: restored, mountPath: /restored}, {name: cloned, mountPath: /cloned}]
`

// TestLocalSnapshots takes a snapshot of a local volume, and makes a claim from it and a clone, while the server is
// killed with SIGKILL. In the end no file may remain.
func TestLocalSnapshots(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(storageManifest)
	h.Ctl("wait pod/writer --for=condition=Ready --timeout=120s")
	h.Run("ctl", "exec", "writer", "--", "sh", "-c",
		"echo before > /data/file; chown 4242 /data/file; ln /data/file /data/link")
	h.Apply(localSnapshotManifest)
	h.Kill() // at any stage
	h.Start()
	h.Ctl("wait vs/before --for=jsonpath={.status.readyToUse}=true --timeout=120s")
	require.Equal(t, "1Gi/local", h.Ctl("get vs before -o jsonpath={.status.restoreSize}/{.spec.volumeSnapshotClassName}"))
	h.Run("ctl", "exec", "writer", "--", "sh", "-c", "echo after > /data/file")

	h.Apply(restoredManifest)
	h.Ctl("wait pod/reader --for=condition=Ready --timeout=120s")
	require.Equal(t, "before\n4242 2\n",
		h.Run("ctl", "exec", "reader", "--", "sh", "-c", "cat /restored/file; stat -c '%u %h' /restored/file"))
	require.Equal(t, "after\n", h.Ctl("exec reader -- cat /cloned/file"))
	require.Empty(t, h.Ctl("get pvc data restored -o jsonpath={.items[*].metadata.deletionTimestamp}"))

	manifest := filepath.Join(t.TempDir(), "small.yaml")
	claim, _, _ := strings.Cut(restoredManifest, "---")
	require.NoError(t,
		os.WriteFile(manifest, []byte(strings.NewReplacer("1Gi", "1Mi", "name: restored", "name: small").Replace(claim)),
			0o600))
	h.Ctl("apply -f " + manifest)
	require.Eventually(t, func() bool {
		return strings.Contains(h.Ctl("get events --field-selector=involvedObject.name=small"),
			"requested volume size 1048576 is less than the size 1073741824")
	}, host.Patience, 50*time.Millisecond)

	h.Ctl("delete pod writer reader --timeout=120s")
	h.Ctl("delete pvc --all --timeout=120s")
	h.Ctl("delete vs before --timeout=120s")
	require.Empty(t, h.Ctl("get vsc -o name"))
	h.Ctl("wait pv --all --for=delete --timeout=120s")
	require.Empty(t, localVolumes(t, h), "the snapshot is gone, too")
}
