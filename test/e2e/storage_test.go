package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const storageManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers: [{name: c, image: "busybox:1.36", command: [sh, -c, "while true; do sleep 1 & wait; done"], volumeMounts: [{name: data, mountPath: /data}]}]
`

func localVolumes(t *testing.T, h *host.Host) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(h.DataDir, "agent/local-volumes/*"))
	require.NoError(t, err)
	return found
}

// TestStorage follows the life of a claim: provisioned for its first pod, kept over SIGKILL and the pod's
// replacement, expanded, protected while in use, and removed completely once deleted.
func TestStorage(t *testing.T) {
	h := host.New(t)
	h.Start()
	require.Contains(t, h.Ctl("get storageclass"), "local (default)")
	h.Apply(storageManifest)
	ready := func() {
		t.Helper()
		h.Ctl("wait pod/writer --for=condition=Ready --timeout=120s")
	}
	ready()
	require.Equal(t, "Bound", h.Ctl("get pvc data -o jsonpath={.status.phase}"))
	h.Run("ctl", "exec", "writer", "--", "sh", "-c", "echo kept > /data/file")
	require.Len(t, localVolumes(t, h), 1)

	t.Run("data survives kill -9 and another pod", func(t *testing.T) {
		h.Kill()
		h.Run("start")
		require.Equal(t, "kept\n", h.Ctl("exec writer -- cat /data/file"))
		h.Ctl("delete pod writer --timeout=120s")
		h.Apply(storageManifest)
		ready()
		require.Equal(t, "kept\n", h.Ctl("exec writer -- cat /data/file"))
	})

	t.Run("expansion", func(t *testing.T) {
		h.Run("ctl", "patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
		h.Ctl("wait pvc/data --for=jsonpath={.status.capacity.storage}=2Gi --timeout=120s")
		require.Equal(t, "2Gi", h.Ctl("get pv -o jsonpath={.items[0].spec.capacity.storage}"))
	})

	t.Run("claims in use are protected and deleted ones leave no files", func(t *testing.T) {
		h.Ctl("delete pvc data --wait=false")
		require.Equal(t, "kept\n", h.Ctl("exec writer -- cat /data/file"))
		require.Contains(t, h.Ctl("get pvc data"), "Terminating")
		h.Ctl("delete pod writer --timeout=120s")
		h.Ctl("wait pvc/data --for=delete --timeout=120s")
		h.Ctl("wait pv --all --for=delete --timeout=120s")
		require.Empty(t, localVolumes(t, h))
	})

	t.Run("quota", func(t *testing.T) {
		h.Ctl("create namespace small")
		h.Ctl("create quota q -n small --hard=requests.storage=3Gi,local.storageclass.storage.k8s.io/requests.storage=1Gi")
		h.Ctl("wait quota/q -n small --for=jsonpath={.status.hard.requests\\.storage}=3Gi --timeout=120s")
		manifest := filepath.Join(t.TempDir(), "claim.yaml")
		claim, _, _ := strings.Cut(storageManifest, "---")
		require.NoError(t, os.WriteFile(manifest, []byte(strings.Replace(claim, "1Gi", "2Gi", 1)), 0o600))
		require.Contains(t, h.Fails("ctl", "apply", "-n", "small", "-f", manifest),
			"exceeded quota: q, requested: local.storageclass.storage.k8s.io/requests.storage=2Gi")
		require.NoError(t, os.WriteFile(manifest, []byte(claim), 0o600))
		h.Ctl("apply -n small -f " + manifest)
		h.Ctl("wait quota/q -n small --for=jsonpath={.status.used.requests\\.storage}=1Gi --timeout=120s")
		h.Ctl("delete namespace small --timeout=120s")
	})

	t.Run("a claim without a storage class reports it", func(t *testing.T) {
		h.Apply(strings.Replace(storageManifest, "spec: {accessModes", "spec: {storageClassName: none, accessModes", 1))
		h.Ctl(`wait pod/writer --for=jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}=Unschedulable --timeout=120s`)
		h.Shows(`storageclass.storage.k8s.io "none" not found`, "get events")
		h.Shows("pod has unbound immediate PersistentVolumeClaims", "describe pod writer")
		h.Ctl("delete pod writer --timeout=120s")
		h.Ctl("delete pvc data --timeout=120s")
	})
}

const claimTemplatesManifest = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  persistentVolumeClaimRetentionPolicy: {whenScaled: Retain, whenDeleted: Delete}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: busybox:1.36
        command: [sh, -c, "hostname >> /data/starts; while true; do sleep 1 & wait; done"]
        volumeMounts: [{name: data, mountPath: /data}, {name: scratch, mountPath: /scratch}]
      volumes:
      - name: scratch
        ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
`

// TestStatefulStorage checks that a set's claims stay while the set is scaled down and are deleted with the set as
// its policy says. Ephemeral volumes are deleted with their pods.
func TestStatefulStorage(t *testing.T) {
	h := host.New(t)
	h.Start()
	starts := func(want string) { // db-1 is Running before it has recorded its start
		t.Helper()
		require.Eventually(t, func() bool {
			out, err := h.Try("ctl", "exec", "db-1", "--", "cat", "/data/starts")
			return err == nil && out == want
		}, host.Patience, 50*time.Millisecond)
	}
	h.Apply(claimTemplatesManifest)
	h.Ctl("rollout status sts/db --timeout=120s")
	require.Equal(t, "data-db-0 data-db-1 db-0-scratch db-1-scratch",
		h.Ctl("get pvc -o jsonpath={.items[*].metadata.name}"))
	h.Ctl("scale sts/db --replicas=1")
	h.Ctl("wait pvc/db-1-scratch --for=delete --timeout=120s")
	require.Equal(t, "data-db-0 data-db-1 db-0-scratch", h.Ctl("get pvc -o jsonpath={.items[*].metadata.name}"))
	h.Ctl("scale sts/db --replicas=2")
	h.Ctl("rollout status sts/db --timeout=120s")
	starts("db-1\ndb-1\n")

	h.Run("ctl", "patch", "sts", "db", "-p", `{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenScaled":"Delete"}}}`)
	h.Ctl("scale sts/db --replicas=1")
	h.Ctl("wait pvc/data-db-1 --for=delete --timeout=120s")
	h.Ctl("scale sts/db --replicas=2")
	h.Ctl("rollout status sts/db --timeout=120s")
	starts("db-1\n")

	h.Ctl("delete sts db --timeout=120s")
	h.Ctl("wait pvc --all --for=delete --timeout=120s")
	h.Ctl("wait pv --all --for=delete --timeout=120s")
	require.Empty(t, localVolumes(t, h))
}

// TestVolumeIsRemovedAfterKill checks that a volume whose claim is deleted while its node is down is removed when
// the node returns.
func TestVolumeIsRemovedAfterKill(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(storageManifest)
	h.Ctl("wait pod/writer --for=condition=Ready --timeout=120s")
	directory := localVolumes(t, h)
	require.Len(t, directory, 1)
	for i := range 300 {
		require.NoError(t, os.WriteFile(filepath.Join(directory[0], fmt.Sprint(i)), make([]byte, 1<<12), 0o600))
	}
	h.Ctl("delete pod writer --timeout=120s")
	h.Ctl("delete pvc data --wait=false")
	h.Kill()
	h.Run("start")
	h.Ctl("wait pvc --all --for=delete --timeout=120s")
	h.Ctl("wait pv --all --for=delete --timeout=120s")
	require.Empty(t, localVolumes(t, h))
}
