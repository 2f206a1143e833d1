package builtin

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/kind/own"
)

// snapshotKinds returns the kinds of volume snapshots. Elsewhere they are custom resources; their keys in the store are the same.
func snapshotKinds() []ourKind {
	return []ourKind{
		{own.Row(own.Definition[*snapshots.VolumeSnapshot]{
			Kind: snapshots.GroupVersion.WithKind("VolumeSnapshot"), Plural: "volumesnapshots", ShortNames: []string{"vs"},
			New: func() *snapshots.VolumeSnapshot { return &snapshots.VolumeSnapshot{} }, NewList: func() client.ObjectList { return &snapshots.VolumeSnapshotList{} },
			Validate: snapshots.Validate, ValidateUpdate: snapshots.ValidateUpdate, RequireUpdateRevision: true,
			Columns: snapshots.Columns, Cells: snapshots.Cells, Source: snapshots.Source,
		}, func(s *snapshots.VolumeSnapshot) **snapshots.VolumeSnapshotStatus { return &s.Status }), snapshots.Rights},
		{own.Row(own.Definition[*snapshots.VolumeSnapshotContent]{
			Kind: snapshots.GroupVersion.WithKind("VolumeSnapshotContent"), Plural: "volumesnapshotcontents", ShortNames: []string{"vsc", "vscs"}, Cluster: true,
			New: func() *snapshots.VolumeSnapshotContent { return &snapshots.VolumeSnapshotContent{} }, NewList: func() client.ObjectList { return &snapshots.VolumeSnapshotContentList{} },
			Validate: snapshots.ValidateContent, ValidateUpdate: snapshots.ValidateContentUpdate, ValidateStatus: snapshots.ValidateContentStatus, RequireUpdateRevision: true,
			Columns: snapshots.ContentColumns, Cells: snapshots.ContentCells, Source: snapshots.ContentSource,
		}, func(c *snapshots.VolumeSnapshotContent) **snapshots.VolumeSnapshotContentStatus { return &c.Status }), snapshots.ContentRights},
		{own.Row[snapshots.VolumeSnapshotClass, struct{}](own.Definition[*snapshots.VolumeSnapshotClass]{
			Kind: snapshots.GroupVersion.WithKind("VolumeSnapshotClass"), Plural: "volumesnapshotclasses", ShortNames: []string{"vsclass", "vsclasses"}, Cluster: true,
			New: func() *snapshots.VolumeSnapshotClass { return &snapshots.VolumeSnapshotClass{} }, NewList: func() client.ObjectList { return &snapshots.VolumeSnapshotClassList{} },
			Validate: snapshots.ValidateClass, RequireUpdateRevision: true,
			Columns: snapshots.ClassColumns, Cells: snapshots.ClassCells, Source: snapshots.ClassSource,
		}, nil), snapshots.ClassRights},
	}
}
