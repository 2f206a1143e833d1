package builtin

import (
	"testing"

	"github.com/stretchr/testify/require"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
)

// Group snapshots that the store has from upstream's custom resource can be decoded after an upgrade.
func TestGroupsThatDefinitionsStored(t *testing.T) {
	for _, k := range snapshotKinds() {
		if k.Row.Kind != "VolumeGroupSnapshotContent" {
			continue
		}
		o, err := k.Row.Decode([]byte(
			`{"apiVersion":"groupsnapshot.storage.k8s.io/v1beta2","kind":"VolumeGroupSnapshotContent","metadata":{"name":"c"},
			"spec":{"driver":"d.example.com","source":{"volumeHandles":["disk"]}},"status":{"volumeSnapshotInfoList":[{"volumeHandle":"disk","snapshotHandle":"snap"}]}}`), 7)
		require.NoError(t, err)
		require.Equal(t, snapshots.Groups.WithKind("VolumeGroupSnapshotContent"), o.GetObjectKind().GroupVersionKind())
		require.Equal(t, "snap", o.(*snapshots.VolumeGroupSnapshotContent).Status.VolumeSnapshotInfoList[0].SnapshotHandle)
		return
	}
	t.Fatal("there is no row of VolumeGroupSnapshotContents")
}
