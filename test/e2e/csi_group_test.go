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

// groupVolume is a claim NAME of the application db, and its volume disk-NAME of DRIVER.
const groupVolume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-NAME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  claimRef: {namespace: default, name: NAME}
  csi: {driver: DRIVER, volumeHandle: disk-NAME}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, labels: {app: db}}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: pv-NAME, resources: {requests: {storage: 1Gi}}}
---
`

const groupManifest = `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: groups, annotations: {groupsnapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: d.example.com
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: nightly}
spec: {source: {selector: {matchExpressions: [{key: app, operator: In, values: [db]}]}}}
`

const existingGroupManifest = `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotContent
metadata: {name: old}
spec:
  driver: d.example.com
  deletionPolicy: Retain
  source: {groupSnapshotHandles: {volumeGroupSnapshotHandle: group-0, volumeSnapshotHandles: [snap-0]}}
  volumeGroupSnapshotRef: {namespace: default, name: old}
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: old}
spec: {source: {volumeGroupSnapshotContentName: old}}
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

// badGroups are groups that cannot be snapshotted, by the error in their status.
var badGroups = map[string]string{
	"matches the label selector app=nothing": "{name: nothing}\nspec: {source: {selector: " +
		"{matchLabels: {app: nothing}}}}",
	"all volumes of a group need one driver": "{name: mixed}\nspec: " +
		"{volumeGroupSnapshotClassName: groups, source: {selector: {}}}",
	"the PVC waiting is not yet bound": "{name: unbound}\nspec: {source: {selector: " +
		"{matchLabels: {app: waiting}}}}",
	`would not be of one point in time`: "{name: local}\nspec: {source: {selector: " +
		"{matchLabels: {app: local}}}}",
	`volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "none"`: "{name: classless}\nspec: " +
		"{volumeGroupSnapshotClassName: none, source: {selector: {matchLabels: {app: db}}}}",
	"VolumeGroupSnapshotContent is missing": "{name: missing}\nspec: {source: " +
		"{volumeGroupSnapshotContentName: missing}}",
	`is of the class "foreign"`: "{name: foreign}\nspec: " +
		"{volumeGroupSnapshotClassName: groups, source: {volumeGroupSnapshotContentName: foreign}}",
}

const badGroupClaims = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: waiting, labels: {app: waiting}}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 7Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: local, labels: {app: local}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: local}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: data, persistentVolumeClaim: {claimName: local}}]
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "100000"], volumeMounts: [{name: data, mountPath: /data}]}]
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotContent
metadata: {name: foreign}
spec:
  driver: d.example.com
  deletionPolicy: Retain
  volumeGroupSnapshotClassName: foreign
  source: {groupSnapshotHandles: {volumeGroupSnapshotHandle: group-1, volumeSnapshotHandles: [snap-1]}}
  volumeGroupSnapshotRef: {namespace: default, name: foreign}
`

// TestGroupSnapshots follows the life of group snapshots of a CSI driver's volumes: one that is taken and one that
// exists already. The test acts as the driver's csi-snapshotter. The server is killed at each step.
func TestGroupSnapshots(t *testing.T) {
	h := host.New(t)
	h.Start()
	until := func(want, line string) {
		t.Helper()
		require.Eventually(t, func() bool { return h.Ctl(line) == want }, host.Patience, 50*time.Millisecond, line)
	}
	killed := func() { h.Kill(); h.Start() }
	patch := func(what, name, body string, more ...string) {
		h.Run(append([]string{"ctl", "patch", what, name, "--type=merge", "-p", body}, more...)...)
	}
	volume := func(name, driver string) string {
		return strings.NewReplacer("NAME", name, "DRIVER", driver).Replace(groupVolume)
	}
	h.Apply(volume("a", "d.example.com") + volume("b", "d.example.com"))
	until("Bound Bound", "get pvc a b -o jsonpath={.items[*].status.phase}")

	h.Apply(groupManifest)
	killed()
	uid := h.Ctl("get vgs nightly -o jsonpath={.metadata.uid}")
	content := "groupsnapcontent-" + uid
	until(content, "get vgs nightly -o jsonpath={.status.boundVolumeGroupSnapshotContentName}")
	require.Equal(t, `["disk-a","disk-b"]/d.example.com/Delete/groups`,
		h.Ctl("get vgsc "+content+
			" -o jsonpath={.spec.source.volumeHandles}/{.spec.driver}/"+
			"{.spec.deletionPolicy}/{.spec.volumeGroupSnapshotClassName}"))
	require.Equal(t, "groups", h.Ctl("get vgs nightly -o jsonpath={.spec.volumeGroupSnapshotClassName}"))

	taken := func(ready bool) string {
		one := `{"volumeHandle":"disk-%[1]s","snapshotHandle":"snap-%[1]s","readyToUse":true,"creationTime":1700000000000000000,"restoreSize":1073741824}`
		return fmt.Sprintf(`{"status":{"volumeGroupSnapshotHandle":"group-2","readyToUse":%v,"creationTime":"2023-11-14T22:13:20Z","volumeSnapshotInfoList":[%s,%s]}}`, ready, fmt.Sprintf(one, "a"), fmt.Sprintf(one, "b"))
	}
	patch("vgsc", content, taken(false), "--subresource=status")
	killed()
	until("nightly nightly", "get vs -o jsonpath={.items[*].status.volumeGroupSnapshotName}")
	h.Ctl("wait vs --all --for=jsonpath={.status.readyToUse}=true --timeout=120s")
	require.Equal(t, "false", h.Ctl("get vgs nightly -o jsonpath={.status.readyToUse}"))
	require.ElementsMatch(t, []string{"a=1Gi", "b=1Gi"},
		strings.Fields(h.Ctl(`get vs -o jsonpath={range.items[*]}{.spec.source.persistentVolumeClaimName}={.status.restoreSize}{"\n"}{end}`)))
	require.ElementsMatch(t, []string{"disk-a=snap-a=group-2=group-2", "disk-b=snap-b=group-2=group-2"},
		strings.Fields(h.Ctl(
			`get vsc -o jsonpath={range.items[*]}{.spec.source.volumeHandle}={.status.snapshotHandle}={.status.volumeGroupSnapshotHandle}={.metadata.annotations.groupsnapshot\.storage\.k8s\.io/volumeGroupSnapshotHandle}{"\n"}{end}`)))
	patch("vgsc", content, taken(true), "--subresource=status")
	h.Ctl("wait vgs/nightly --for=jsonpath={.status.readyToUse}=true --timeout=120s")
	require.Regexp(t,
		`NAME +READYTOUSE +VOLUMEGROUPSNAPSHOTCLASS +VOLUMEGROUPSNAPSHOTCONTENT +CREATIONTIME +AGE\nnightly +true +groups +`+
			content+` +\w+ +\w+`, h.Ctl("get vgs"))
	require.Regexp(t,
		`NAME +READYTOUSE +DELETIONPOLICY +DRIVER +VOLUMEGROUPSNAPSHOTCLASS +VOLUMEGROUPSNAPSHOTNAMESPACE +VOLUMEGROUPSNAPSHOT +AGE\n`+content+` +true +Delete +d.example.com +groups +default +nightly +`, h.Ctl("get vgsc"))

	t.Run("a snapshot stays with its group", func(t *testing.T) {
		one := strings.TrimSpace(h.Ctl(`get vs -o jsonpath={.items[0].metadata.name}`))
		h.Ctl("delete vs " + one + " --wait=false")
		require.Eventually(t, func() bool {
			return strings.Contains(h.Ctl("get events --field-selector=reason=SnapshotDeletePending"),
				"not allowed as it belongs to group snapshot default/nightly")
		}, host.Patience, 50*time.Millisecond)
		require.Equal(t, "true", h.Ctl("get vs "+one+" -o jsonpath={.status.readyToUse}"))
	})

	t.Run("a group that exists already", func(t *testing.T) {
		h.Apply(existingGroupManifest)
		until("old", "get vgs old -o jsonpath={.status.boundVolumeGroupSnapshotContentName}")
		patch("vgsc", "old", `{"status":{"volumeGroupSnapshotHandle":"group-0","readyToUse":true}}`, "--subresource=status")
		patch("vsc", "old", `{"status":{"snapshotHandle":"snap-0","volumeGroupSnapshotHandle":"group-0","readyToUse":true}}`,
			"--subresource=status")
		killed()
		h.Ctl("wait vgs/old vs/old --for=jsonpath={.status.readyToUse}=true --timeout=120s")
		until("VolumeGroupSnapshot/old", "get vs old -o jsonpath={range.metadata.ownerReferences[*]}{.kind}/{.name}{end}")
		require.Equal(t, "old", h.Ctl("get vs old -o jsonpath={.status.volumeGroupSnapshotName}"))
		h.Ctl("delete vgs old --timeout=120s")
		h.Ctl("wait vs/old --for=delete --timeout=120s")
		require.Equal(t, "group-0 snap-0",
			h.Ctl("get vgsc old -o jsonpath={.status.volumeGroupSnapshotHandle}")+" "+
				h.Ctl("get vsc old -o jsonpath={.status.snapshotHandle}"), "its policy is Retain")
	})

	t.Run("bad input", func(t *testing.T) {
		h.Apply(volume("c", "e.example.com") + badGroupClaims)
		until("Bound Bound", "get pvc c local -o jsonpath={.items[*].status.phase}")
		for want, rest := range badGroups {
			h.Apply("apiVersion: groupsnapshot.storage.k8s.io/v1\nkind: VolumeGroupSnapshot\nmetadata: " + rest)
			name, _, _ := strings.Cut(strings.TrimPrefix(rest, "{name: "), "}")
			require.Eventually(t, func() bool {
				return strings.Contains(h.Ctl("get vgs "+name+" -o jsonpath={.status.error.message}"), want) &&
					strings.Contains(h.Ctl("get events --field-selector=involvedObject.name="+name), want)
			}, host.Patience, 50*time.Millisecond, "%s: %s", name, h.Ctl("get vgs "+name+" -o jsonpath={.status.error.message}"))
			require.Equal(t, "false", h.Ctl("get vgs "+name+" -o jsonpath={.status.readyToUse}"))
		}
		class := filepath.Join(t.TempDir(), "class.yaml")
		require.NoError(t,
			os.WriteFile(class,
				[]byte("apiVersion: groupsnapshot.storage.k8s.io/v1\nkind: VolumeGroupSnapshotClass\nmetadata: {name: "+
					"local}\ndriver: coracle.dev/local\ndeletionPolicy: Delete\n"), 0o600))
		require.Contains(t, h.Fails("ctl", "create", "-f", class), "there are no groups of their snapshots")
		h.Ctl("delete vgs nothing mixed unbound local classless missing foreign --timeout=120s")
	})

	h.Ctl("delete vgs nightly --wait=false")
	killed()
	h.Ctl("wait vgsc/" + content + " --for=jsonpath={.metadata.deletionTimestamp} --timeout=120s")
	require.Equal(t, "yes",
		h.Ctl("get vgsc "+content+
			` -o jsonpath={.metadata.annotations.groupsnapshot\.storage\.kubernetes\.io/volumegroupsnapshot-being-deleted}`))
	require.Len(t, strings.Fields(h.Ctl("get vs -o jsonpath={.items[*].metadata.deletionTimestamp}")), 2,
		"its snapshots follow it")
	require.NotEmpty(t, h.Ctl("get vgs nightly -o name"), "the driver has the group")
	patch("vgsc", content, `{"metadata":{"finalizers":null}}`)
	h.Ctl("wait vgs/nightly --for=delete --timeout=120s")
	killed()
	left := func() []string {
		return strings.Fields(h.Ctl(`get vsc -o jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}`))
	}
	require.Eventually(t, func() bool {
		return len(left()) == 2
	}, host.Patience, 50*time.Millisecond, "the contents of its snapshots go")
	for _, name := range left() {
		patch("vsc", name, `{"metadata":{"finalizers":null}}`)
	}
	until("", "get vs -o name")
}
