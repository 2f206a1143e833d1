package builtin

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

// The columns of the kinds of snapshots are upstream's.

func snapshotColumns() []own.Column[*snapshots.VolumeSnapshot] {
	type snapshot = *snapshots.VolumeSnapshot
	status := func(s snapshot) snapshots.VolumeSnapshotStatus { return known(s.Status) }
	return []own.Column[snapshot]{
		ready("Whether a volume can be made from the snapshot", func(s snapshot) *bool { return status(s).ReadyToUse }),
		{Name: "SourcePVC", About: "The claim of whose volume it is", Cell: func(s snapshot) any {
			return known(s.Spec.Source.PersistentVolumeClaimName)
		}},
		{
			Name: "SourceSnapshotContent", About: "The content of a snapshot that existed already",
			Cell: func(s snapshot) any { return known(s.Spec.Source.VolumeSnapshotContentName) },
		},
		{Name: "RestoreSize", About: "The least size of a volume that is made from it", Cell: func(s snapshot) any {
			if size := status(s).RestoreSize; size != nil {
				return size
			}
			return ""
		}},
		{Name: "SnapshotClass", About: "Its class", Cell: func(s snapshot) any {
			return known(s.Spec.VolumeSnapshotClassName)
		}},
		{Name: "SnapshotContent", About: "The content that it is bound to, or is to be", Cell: func(s snapshot) any {
			return known(status(s).BoundVolumeSnapshotContentName)
		}},
		taken(func(s snapshot) *metav1.Time { return status(s).CreationTime }),
		created[snapshot](),
	}
}

func snapshotContentColumns() []own.Column[*snapshots.VolumeSnapshotContent] {
	type content = *snapshots.VolumeSnapshotContent
	status := func(c content) snapshots.VolumeSnapshotContentStatus { return known(c.Status) }
	return []own.Column[content]{
		ready("Whether a volume can be made from the snapshot", func(c content) *bool { return status(c).ReadyToUse }),
		{
			Name: "RestoreSize", About: "The least size of a volume that is made from it, in bytes", Type: "integer",
			Cell: func(c content) any {
				if size := status(c).RestoreSize; size != nil {
					return strconv.FormatInt(*size, 10)
				}
				return ""
			},
		},
		{
			Name: "DeletionPolicy", About: "What becomes of it when its VolumeSnapshot is deleted",
			Cell: func(c content) any { return c.Spec.DeletionPolicy },
		},
		{Name: "Driver", About: "The driver that has it", Cell: func(c content) any { return c.Spec.Driver }},
		{Name: "VolumeSnapshotClass", About: "Its class", Cell: func(c content) any {
			return known(c.Spec.VolumeSnapshotClassName)
		}},
		{Name: "VolumeSnapshot", About: "The name of its VolumeSnapshot", Cell: func(c content) any {
			return c.Spec.VolumeSnapshotRef.Name
		}},
		{Name: "VolumeSnapshotNamespace", About: "The namespace of its VolumeSnapshot", Cell: func(c content) any {
			return c.Spec.VolumeSnapshotRef.Namespace
		}},
		created[content](),
	}
}

func snapshotClassColumns() []own.Column[*snapshots.VolumeSnapshotClass] {
	type class = *snapshots.VolumeSnapshotClass
	return []own.Column[class]{
		{Name: "Driver", About: "The driver that takes snapshots", Cell: func(c class) any { return c.Driver }},
		{
			Name: "DeletionPolicy", About: "What becomes of a snapshot when its VolumeSnapshot is deleted",
			Cell: func(c class) any { return c.DeletionPolicy },
		},
		created[class](),
	}
}

func groupColumns() []own.Column[*snapshots.VolumeGroupSnapshot] {
	type group = *snapshots.VolumeGroupSnapshot
	status := func(g group) snapshots.VolumeGroupSnapshotStatus { return known(g.Status) }
	return []own.Column[group]{
		ready("Whether volumes can be made from all its snapshots", func(g group) *bool { return status(g).ReadyToUse }),
		{Name: "VolumeGroupSnapshotClass", About: "Its class", Cell: func(g group) any {
			return known(g.Spec.VolumeGroupSnapshotClassName)
		}},
		{
			Name: "VolumeGroupSnapshotContent", About: "The content that it is bound to, or is to be",
			Cell: func(g group) any { return known(status(g).BoundVolumeGroupSnapshotContentName) },
		},
		taken(func(g group) *metav1.Time { return status(g).CreationTime }),
		created[group](),
	}
}

func groupContentColumns() []own.Column[*snapshots.VolumeGroupSnapshotContent] {
	type content = *snapshots.VolumeGroupSnapshotContent
	return []own.Column[content]{
		ready("Whether volumes can be made from all its snapshots",
			func(c content) *bool { return known(c.Status).ReadyToUse }),
		{
			Name: "DeletionPolicy", About: "What becomes of it when its VolumeGroupSnapshot is deleted",
			Cell: func(c content) any { return c.Spec.DeletionPolicy },
		},
		{Name: "Driver", About: "The driver that has it", Cell: func(c content) any { return c.Spec.Driver }},
		{Name: "VolumeGroupSnapshotClass", About: "Its class", Cell: func(c content) any {
			return known(c.Spec.VolumeGroupSnapshotClassName)
		}},
		{Name: "VolumeGroupSnapshotNamespace", About: "The namespace of its VolumeGroupSnapshot",
			Cell: func(c content) any { return c.Spec.VolumeGroupSnapshotRef.Namespace }},
		{
			Name: "VolumeGroupSnapshot", About: "The name of its VolumeGroupSnapshot",
			Cell: func(c content) any { return c.Spec.VolumeGroupSnapshotRef.Name },
		},
		created[content](),
	}
}

func groupClassColumns() []own.Column[*snapshots.VolumeGroupSnapshotClass] {
	type class = *snapshots.VolumeGroupSnapshotClass
	return []own.Column[class]{
		{Name: "Driver", About: "The driver that takes groups of snapshots", Cell: func(c class) any { return c.Driver }},
		{
			Name: "DeletionPolicy", About: "What becomes of a group when its VolumeGroupSnapshot is deleted",
			Cell: func(c class) any { return c.DeletionPolicy },
		},
		created[class](),
	}
}

// known returns what a pointer points to, or the zero value.
func known[T any](v *T) (none T) {
	if v == nil {
		return none
	}
	return *v
}

func ready[P client.Object](about string, is func(P) *bool) own.Column[P] {
	return own.Column[P]{Name: "ReadyToUse", About: about, Type: "boolean", Cell: func(o P) any {
		if b := is(o); b != nil {
			return strconv.FormatBool(*b)
		}
		return ""
	}}
}

func taken[P client.Object](at func(P) *metav1.Time) own.Column[P] {
	return own.Column[P]{
		Name: "CreationTime", About: "Time since it was taken", Type: "date",
		Cell: func(o P) any { return own.Ago(at(o), "") },
	}
}

func created[P client.Object]() own.Column[P] {
	c := own.AgeColumn[P]()
	c.Type = "date"
	return c
}
