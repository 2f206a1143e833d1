package localsnapshot

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
)

func node(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: "host-" + name},
			Annotations: map[string]string{storage.DirectoryAnnotation: "/var/lib/" + name}},
	}
}

var class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: storage.Provisioner}

func claim(name, size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-" + "c"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("local"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			},
		}}
	for _, f := range change {
		f(c)
	}
	return c
}

func ofKind(group, kind, name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: kind, Name: name}
	}
}

func content(change ...func(*snapshots.VolumeSnapshotContent)) *snapshots.VolumeSnapshotContent {
	c := &snapshots.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "snap", Finalizers: []string{snapshots.ContentFinalizer}},
		Spec: snapshots.VolumeSnapshotContentSpec{
			Driver: storage.Provisioner, DeletionPolicy: snapshots.Delete,
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "uid-s"},
			Source:            snapshots.VolumeSnapshotContentSource{VolumeHandle: new("pv")},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func existing(handle string) func(*snapshots.VolumeSnapshotContent) {
	return func(c *snapshots.VolumeSnapshotContent) {
		c.Spec.Source = snapshots.VolumeSnapshotContentSource{SnapshotHandle: &handle}
	}
}

func asked(c *snapshots.VolumeSnapshotContent) { *c = *begun(c, node("a")) }

func going(c *snapshots.VolumeSnapshotContent) {
	c.DeletionTimestamp = &metav1.Time{}
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshots.DeletingAnnotation, "yes")
}

func isTaken(c *snapshots.VolumeSnapshotContent) {
	*c = *taken(c, node("a"), "snap", storage.Snapshot{Size: 1 << 30, Taken: 5})
}

func TestPlanContent(t *testing.T) {
	nodes := []*corev1.Node{node("a"), node("b")}
	volume := storage.NewVolume(claim("c", "1Gi"), class, nodes[0])
	copied := volume.DeepCopy()
	copied.Annotations[storage.ContentAnnotation] = "snapshot/other"
	leaving := volume.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{}
	hostPath := volume.DeepCopy()
	hostPath.Annotations = nil
	elsewhere := storage.NewVolume(claim("c", "1Gi"), class, node("gone"))
	for name, tt := range map[string]struct {
		s          State
		op         Op
		node, snap string
	}{
		"a driver's": {
			s: State{
				Content: content(func(c *snapshots.VolumeSnapshotContent) { c.Spec.Driver = "d.example.com" }),
				Volume:  volume,
				Nodes:   nodes,
			},
		},
		"says where it will be": {
			s: State{Content: content(), Volume: volume, Nodes: nodes}, op: Begin, node: "a", snap: "snap",
		},
		"taken on the volume's": {
			s: State{Content: content(asked), Volume: volume, Nodes: nodes}, op: Take, node: "a", snap: "snap",
		},
		"of a volume that goes":     {s: State{Content: content(asked), Volume: leaving, Nodes: nodes}, op: Fail},
		"once":                      {s: State{Content: content(isTaken), Volume: volume, Nodes: nodes}},
		"of no volume":              {s: State{Content: content(), Nodes: nodes}, op: Fail},
		"of a volume not ours":      {s: State{Content: content(), Volume: hostPath, Nodes: nodes}, op: Fail},
		"of a volume not yet whole": {s: State{Content: content(), Volume: copied, Nodes: nodes}, op: Fail},
		"of a node that is gone":    {s: State{Content: content(), Volume: elsewhere, Nodes: nodes}, op: Fail},
		"existing": {
			s: State{Content: content(existing("b/old")), Nodes: nodes}, op: Find, node: "b", snap: "old",
		},
		"existing nowhere":          {s: State{Content: content(existing("c/old")), Nodes: nodes}, op: Fail},
		"existing, a driver's name": {s: State{Content: content(existing("snap-123")), Nodes: nodes}, op: Fail},
		"existing, not a name":      {s: State{Content: content(existing("b/../pv")), Nodes: nodes}, op: Fail},
		"removed": {
			s: State{Content: content(isTaken, going), Volume: volume, Nodes: nodes}, op: Remove, node: "a", snap: "snap",
		},
		"removed before an answer": {
			s: State{Content: content(asked, going), Nodes: nodes}, op: Remove, node: "a", snap: "snap",
		},
		"never asked for":           {s: State{Content: content(going), Volume: volume, Nodes: nodes}, op: Release},
		"removed, its node is gone": {s: State{Content: content(isTaken, going), Nodes: nodes[1:]}, op: Remove, snap: "snap"},
		"not while it is bound": {
			s: State{
				Content: content(isTaken, going, func(c *snapshots.VolumeSnapshotContent) { c.Annotations = nil }), Nodes: nodes,
			},
		},
		"retained": {
			s: State{
				Content: content(isTaken, going, func(c *snapshots.VolumeSnapshotContent) {
					c.Spec.DeletionPolicy = snapshots.Retain
				}), Nodes: nodes,
			}, op: Release,
		},
		"never bound": {s: State{Content: content(existing("a/old"), going, func(c *snapshots.VolumeSnapshotContent) {
			c.Annotations, c.Spec.VolumeSnapshotRef.UID = nil, ""
		}), Nodes: nodes}, op: Remove, node: "a", snap: "old"},
	} {
		t.Run(name, func(t *testing.T) {
			step := PlanContent(tt.s)
			require.Equal(t, tt.op, step.Op, step.Error)
			if tt.node == "" {
				require.Nil(t, step.Node)
			} else {
				require.Equal(t, tt.node, step.Node.Name)
			}
			require.Equal(t, tt.snap, step.Snapshot)
			require.Equal(t, tt.op == Fail, step.Error != "")
		})
	}
	now := time.Unix(9, 0)
	c := failed(content(), "no", now)
	require.Nil(t, failed(c, "no", now), "it is said once")
	require.Nil(t, taken(c, node("a"), "snap", storage.Snapshot{}).Status.Error)
}

func TestPlanRestore(t *testing.T) {
	nodes := []*corev1.Node{node("a"), node("b")}
	snapshot := &snapshots.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "uid-s"},
		Status:     &snapshots.VolumeSnapshotStatus{ReadyToUse: new(true)},
	}
	from := claim("from", "1Gi", func(c *corev1.PersistentVolumeClaim) {
		c.UID, c.Status.Phase = "uid-from", corev1.ClaimBound
	})
	volume := storage.NewVolume(from, class, nodes[1])
	ofSnapshot, ofClaim := ofKind(snapshots.GroupVersion.Group, "VolumeSnapshot", "s"), ofKind("", "PersistentVolumeClaim",
		"from")
	good := func() Restore {
		return Restore{
			Claim:    claim("c", "1Gi", ofSnapshot),
			Class:    class,
			Snapshot: snapshot,
			Content:  content(isTaken),
			Nodes:    nodes,
		}
	}
	clone := func() Restore {
		return Restore{Claim: claim("c", "2Gi", ofClaim), Class: class, From: from, Volume: volume, Nodes: nodes}
	}
	v, why := PlanRestore(good())
	require.Empty(t, why)
	require.Equal(t, "snapshot/snap", v.Annotations[storage.ContentAnnotation])
	require.Equal(t, "host-a", storage.HostOf(v))
	require.Equal(t, "/var/lib/a/"+v.Name, v.Spec.Local.Path)
	v, why = PlanRestore(clone())
	require.Empty(t, why)
	require.Equal(t, "volume/"+volume.Name, v.Annotations[storage.ContentAnnotation])
	require.Equal(t, "host-b", storage.HostOf(v))
	require.Equal(t, resource.MustParse("2Gi"), v.Spec.Capacity[corev1.ResourceStorage])

	asBlock := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }
	ofBlock := content(isTaken, func(c *snapshots.VolumeSnapshotContent) {
		c.Spec.SourceVolumeMode = new(corev1.PersistentVolumeBlock)
	})
	v, why = PlanRestore(with(good(), func(r *Restore) {
		r.Claim, r.Content = claim("c", "1Gi", ofSnapshot, asBlock), ofBlock
	}))
	require.Empty(t, why)
	require.Equal(t, corev1.PersistentVolumeBlock, *v.Spec.VolumeMode)

	for want, r := range map[string]Restore{
		"is of a volume of volumeMode Block": with(good(), func(r *Restore) { r.Content = ofBlock }),
		`"from" is of volumeMode Filesystem`: with(clone(), func(r *Restore) {
			r.Claim = claim("c", "2Gi", ofClaim, asBlock)
		}),
		"less than the size": with(good(), func(r *Restore) { r.Claim = claim("c", "1Mi", ofSnapshot) }),
		"is less than":       with(clone(), func(r *Restore) { r.Claim = claim("c", "1Mi", ofClaim) }),
		`"s" not found`:      with(good(), func(r *Restore) { r.Snapshot = nil }),
		"not ready to use":   with(good(), func(r *Restore) { r.Content = content() }),
		"not bound to its": with(good(), func(r *Restore) {
			r.Content = content(isTaken, func(c *snapshots.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "other" })
		}),
		"of the driver": with(good(), func(r *Restore) {
			r.Content = content(isTaken, func(c *snapshots.VolumeSnapshotContent) { c.Spec.Driver = "d.example.com" })
		}),
		"does not exist":   with(good(), func(r *Restore) { r.Nodes = nodes[1:] }),
		`"from" not found`: with(clone(), func(r *Restore) { r.From = nil }),
		"is not bound":     with(clone(), func(r *Restore) { r.Volume = nil }),
		"is not of coracle.dev/": with(clone(), func(r *Restore) {
			r.Volume = volume.DeepCopy()
			r.Volume.Annotations = nil
		}),
		"is a ConfigMap": with(good(), func(r *Restore) {
			r.Claim = claim("c", "1Gi", ofKind("", "ConfigMap", "x"))
		}),
		"must be the claim's own": with(good(), func(r *Restore) {
			r.Claim = claim("c", "1Gi", ofSnapshot, func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef.Namespace = new("other")
			})
		}),
		"invalid AccessModes": with(good(), func(r *Restore) { r.Claim.Spec.AccessModes[0] = corev1.ReadWriteMany }),
		"allowedTopologies": with(good(), func(r *Restore) {
			r.Class = class.DeepCopy()
			r.Class.AllowedTopologies = []corev1.TopologySelectorTerm{
				{
					MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
						{Key: corev1.LabelHostname, Values: []string{"host-b"}},
					},
				},
			}
		}),
		"of the provisioner": with(good(), func(r *Restore) { r.Class = class.DeepCopy(); r.Class.Provisioner = "x/y" }),
		"being deleted": with(good(), func(r *Restore) {
			r.Snapshot = snapshot.DeepCopy()
			r.Snapshot.DeletionTimestamp = &metav1.Time{}
		}),
	} {
		v, why := PlanRestore(r)
		require.Nil(t, v)
		require.Contains(t, why, want)
	}
}

func with(r Restore, change func(*Restore)) Restore {
	change(&r)
	return r
}
