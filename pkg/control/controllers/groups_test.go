package controllers_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// claim creates a claim of the application db, bound to a volume of the CSI driver.
func (c *cluster) claim(name string) {
	c.T.Helper()
	room := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Make(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{Capacity: room, AccessModes: once,
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: name},
			}},
	},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "db"}},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: once, StorageClassName: new(""), VolumeName: name,
				Resources: corev1.VolumeResourceRequirements{Requests: room}},
		})
	controlplane.Until(c, &corev1.PersistentVolumeClaimList{}, "default", name,
		func(p *corev1.PersistentVolumeClaim) bool {
			return p.Status.Phase == corev1.ClaimBound
		})
}

// groupOfClaims creates a group snapshot of n claims. The driver has taken it, but it is not ready yet.
func (c *cluster) groupOfClaims(n int) *snapshots.VolumeGroupSnapshot {
	c.T.Helper()
	c.Make(&snapshots.VolumeGroupSnapshotClass{
		ObjectMeta:     metav1.ObjectMeta{Name: "groups"},
		Driver:         "d.example.com",
		DeletionPolicy: snapshots.Delete,
	})
	status := &snapshots.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: new("group"), ReadyToUse: new(false)}
	for i := range n {
		name := fmt.Sprintf("c-%02d", i)
		c.claim(name)
		status.VolumeSnapshotInfoList = append(status.VolumeSnapshotInfoList, snapshots.VolumeSnapshotInfo{
			VolumeHandle:   name,
			SnapshotHandle: "of-" + name,
			ReadyToUse:     new(false),
		})
	}
	g := &snapshots.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g"}, Spec: snapshots.VolumeGroupSnapshotSpec{
			Source: snapshots.VolumeGroupSnapshotSource{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			}, VolumeGroupSnapshotClassName: new("groups")},
	}
	c.Make(g)
	content := controlplane.Until(c, &snapshots.VolumeGroupSnapshotContentList{}, "", "groupsnapcontent-"+string(g.UID),
		func(*snapshots.VolumeGroupSnapshotContent) bool { return true }).DeepCopy()
	content.Status = status
	require.NoError(c.T, c.Status().Update(c.Ctx, content))
	return g
}

// contentsOf returns the snapshot contents that have a snapshot handle and are not being deleted.
func (c *cluster) contentsOf() (out []*snapshots.VolumeSnapshotContent) {
	var list snapshots.VolumeSnapshotContentList
	require.NoError(c.T, c.List(c.Ctx, &list))
	for i := range list.Items {
		if s := list.Items[i].Status; list.Items[i].DeletionTimestamp == nil && s != nil && s.SnapshotHandle != nil {
			out = append(out, &list.Items[i])
		}
	}
	return out
}

// TestGroupMakesItsContentsAgain: a content of a group's snapshot that is deleted before the group is ready is
// recreated.
func TestGroupMakesItsContentsAgain(t *testing.T) {
	c := start(t, controlplane.Options{})
	c.groupOfClaims(3)
	require.Eventually(t, func() bool { return len(c.contentsOf()) == 3 }, controlplane.Patience, 2*time.Millisecond)
	for _, v := range c.contentsOf() { // once no other changes of the snapshots are pending
		controlplane.Until(c, &snapshots.VolumeSnapshotList{}, "default", v.Spec.VolumeSnapshotRef.Name,
			func(v *snapshots.VolumeSnapshot) bool {
				return v.Status != nil && v.Status.VolumeGroupSnapshotName != nil && len(v.Finalizers) == 3
			})
	}
	for _, v := range c.contentsOf() {
		require.NoError(t, c.Delete(t.Context(), v))
		controlplane.Until(c, &snapshots.VolumeSnapshotContentList{}, "", v.Name,
			func(v *snapshots.VolumeSnapshotContent) bool {
				return v.DeletionTimestamp != nil
			})
		require.NoError(t,
			c.Patch(t.Context(), v, ctrl.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))
	}
	require.Eventually(t, func() bool { return len(c.contentsOf()) == 3 }, controlplane.Patience, 2*time.Millisecond)
}

// TestSnapshotsWithoutGroups: snapshots work where the API server does not have the group snapshot kinds, for
// example because only the definitions of single snapshots were applied.
func TestSnapshotsWithoutGroups(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelWarn, HTTP: true, Bare: true})
	var rows []*kind.Resource
	for _, row := range c.Engine.Kinds.Table().All() {
		if row.Group == snapshots.Groups.Group {
			rows = append(rows, row)
		}
	}
	require.Len(t, rows, 3)
	require.NoError(t, c.Engine.Kinds.Change(t.Context(), rows, nil))
	ctx, cancel := context.WithCancel(c.Ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- server.RunControllers(ctx, server.Outside{
			REST:     c.REST("admin", user.SystemPrivilegedGroup),
			LogLevel: "error",
			Listen:   free(t),
			Only:     []string{"volumesnapshot", "persistentvolume"},
		})
	}()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	c.Make(&snapshots.VolumeSnapshotClass{
		ObjectMeta:     metav1.ObjectMeta{Name: "class"},
		Driver:         "d.example.com",
		DeletionPolicy: snapshots.Delete,
	})
	c.claim("c")
	v := &snapshots.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "v"}, Spec: snapshots.VolumeSnapshotSpec{
			Source: snapshots.VolumeSnapshotSource{PersistentVolumeClaimName: new("c")}, VolumeSnapshotClassName: new("class")},
	}
	c.Make(v)
	controlplane.Until(c, &snapshots.VolumeSnapshotContentList{}, "", "snapcontent-"+string(v.UID),
		func(*snapshots.VolumeSnapshotContent) bool { return true })
}
