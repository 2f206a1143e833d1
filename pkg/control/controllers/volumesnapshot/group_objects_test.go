package volumesnapshot

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
)

func group(name string, change ...func(*snapshots.VolumeGroupSnapshot)) *snapshots.VolumeGroupSnapshot {
	g := &snapshots.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  "ns",
			Name:       name,
			UID:        types.UID("uid-" + name),
			Finalizers: []string{snapshots.GroupBoundFinalizer},
		},
		Spec: snapshots.VolumeGroupSnapshotSpec{
			Source: snapshots.VolumeGroupSnapshotSource{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			}, VolumeGroupSnapshotClassName: new("class"),
		},
	}
	for _, f := range change {
		f(g)
	}
	return g
}

func existingGroup(g *snapshots.VolumeGroupSnapshot) {
	g.Spec.Source = snapshots.VolumeGroupSnapshotSource{VolumeGroupSnapshotContentName: new("content")}
}

func boundGroup(g *snapshots.VolumeGroupSnapshot) {
	g.Status = &snapshots.VolumeGroupSnapshotStatus{
		BoundVolumeGroupSnapshotContentName: new(groupContentOf(g)), ReadyToUse: new(false),
	}
}

func readyGroup(g *snapshots.VolumeGroupSnapshot) { boundGroup(g); g.Status.ReadyToUse = new(true) }

func deletedGroup(g *snapshots.VolumeGroupSnapshot) { g.DeletionTimestamp = &metav1.Time{} }

func groupContent(of *snapshots.VolumeGroupSnapshot,
	change ...func(*snapshots.VolumeGroupSnapshotContent)) *snapshots.VolumeGroupSnapshotContent {
	c := &snapshots.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: groupContentOf(of), Finalizers: []string{snapshots.GroupContentFinalizer}},
		Spec: snapshots.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: of.Namespace, Name: of.Name, UID: of.UID},
			DeletionPolicy:         snapshots.Delete,
			Driver:                 "d.example.com", VolumeGroupSnapshotClassName: new("class"),
			Source: snapshots.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"disk-a", "disk-b"}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func takenGroup(c *snapshots.VolumeGroupSnapshotContent) {
	c.Status = &snapshots.VolumeGroupSnapshotContentStatus{
		VolumeGroupSnapshotHandle: new("group"),
		ReadyToUse:                new(true),
		CreationTime:              &metav1.Time{Time: now},
	}
	for _, h := range c.Spec.Source.VolumeHandles {
		c.Status.VolumeSnapshotInfoList = append(c.Status.VolumeSnapshotInfoList, snapshots.VolumeSnapshotInfo{
			VolumeHandle:   h,
			SnapshotHandle: "snap-of-" + h,
			ReadyToUse:     new(true),
			RestoreSize:    new(int64(1 << 30)),
		})
	}
}

func existingHandles(c *snapshots.VolumeGroupSnapshotContent) {
	c.Spec.Source = snapshots.VolumeGroupSnapshotContentSource{
		GroupSnapshotHandles: &snapshots.GroupSnapshotHandles{
			VolumeGroupSnapshotHandle: "group", VolumeSnapshotHandles: []string{"snap-1"},
		},
	}
}

func unboundGroup(c *snapshots.VolumeGroupSnapshotContent) { c.Spec.VolumeGroupSnapshotRef.UID = "" }

func toldGroup(c *snapshots.VolumeGroupSnapshotContent) {
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshots.GroupDeletingAnnotation, "yes")
}

func groupClass(name string, change ...func(*snapshots.VolumeGroupSnapshotClass)) *snapshots.VolumeGroupSnapshotClass {
	c := &snapshots.VolumeGroupSnapshotClass{
		ObjectMeta:     metav1.ObjectMeta{Name: name},
		Driver:         "d.example.com",
		DeletionPolicy: snapshots.Delete,
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func isDefaultGroup(c *snapshots.VolumeGroupSnapshotClass) {
	c.Annotations = map[string]string{snapshots.GroupDefaultAnnotation: "true"}
}

// sourceNamed returns the claim NAME with the volume disk-NAME.
func sourceNamed(name string, change ...func(*Source)) Source {
	s := Source{Claim: claim(name), Volume: volume()}
	s.Volume.Name, s.Volume.Spec.ClaimRef, s.Volume.Spec.CSI.VolumeHandle = "v-"+name, &corev1.ObjectReference{
		Namespace: "ns", Name: name, UID: s.Claim.UID,
	}, "disk-"+name
	for _, f := range change {
		f(&s)
	}
	return s
}

// member returns a group's snapshot of a claim, with its content.
func member(g *snapshots.VolumeGroupSnapshot, of string) (*snapshots.VolumeSnapshot, *snapshots.VolumeSnapshotContent) {
	v := snapshot(MemberName(g.UID, "disk-"+of), func(v *snapshots.VolumeSnapshot) {
		v.Spec = snapshots.VolumeSnapshotSpec{Source: snapshots.VolumeSnapshotSource{PersistentVolumeClaimName: &of}}
		join(v, g)
	})
	return v, content(v, func(c *snapshots.VolumeSnapshotContent) { c.Spec.VolumeSnapshotClassName = nil })
}

// groupOfTwo returns the state of a group of the volumes disk-a and disk-b that the driver has taken. keep selects
// the existing objects of its snapshots.
func groupOfTwo(g *snapshots.VolumeGroupSnapshot,
	keep ...func(*snapshots.VolumeSnapshot, *snapshots.VolumeSnapshotContent) (bool, bool)) GroupState {
	s := GroupState{
		Group: g, Content: groupContent(g, takenGroup),
		Volumes:   map[string]*corev1.PersistentVolume{"disk-a": sourceNamed("a").Volume, "disk-b": sourceNamed("b").Volume},
		Snapshots: map[string]*snapshots.VolumeSnapshot{}, Contents: map[string]*snapshots.VolumeSnapshotContent{},
	}
	for i, of := range []string{"a", "b"} {
		if i == len(keep) {
			break
		}
		v, c := member(g, of)
		withSnapshot, withContent := keep[i](v, c)
		if withSnapshot {
			s.Snapshots[v.Name] = v
		}
		if withContent {
			s.Contents[c.Name] = c
		}
	}
	return s
}

func whole(v *snapshots.VolumeSnapshot, c *snapshots.VolumeSnapshotContent) (bool, bool) {
	taken(c)
	c.Status.SnapshotHandle, c.Status.VolumeGroupSnapshotHandle = new("snap-of-disk-"+
		*v.Spec.Source.PersistentVolumeClaimName), new("group")
	return true, true
}
