package builtin

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	local "github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// snapshotKinds returns the kinds of volume snapshots and volume group snapshots. In other distributions they are
// custom resources, whose keys in the store are the same.
func snapshotKinds() []own.Kind {
	kinds := []own.Kind{
		own.Declare(own.Definition[*snapshots.VolumeSnapshot]{
			Kind: snapshots.GroupVersion.WithKind("VolumeSnapshot"), Plural: "volumesnapshots", ShortNames: []string{"vs"},
			New:      func() *snapshots.VolumeSnapshot { return &snapshots.VolumeSnapshot{} },
			NewList:  func() client.ObjectList { return &snapshots.VolumeSnapshotList{} },
			Validate: snapshots.Validate, ValidateUpdate: snapshots.ValidateUpdate, RequireUpdateRevision: true,
			Columns: snapshotColumns(), Source: snapshots.Source, View: true, Edit: true,
		}, func(s *snapshots.VolumeSnapshot) **snapshots.VolumeSnapshotStatus {
			return &s.Status
		}),
		own.Declare(own.Definition[*snapshots.VolumeSnapshotContent]{
			Kind: snapshots.GroupVersion.WithKind("VolumeSnapshotContent"), Plural: "volumesnapshotcontents",
			ShortNames: []string{"vsc", "vscs"}, Cluster: true,
			New:      func() *snapshots.VolumeSnapshotContent { return &snapshots.VolumeSnapshotContent{} },
			NewList:  func() client.ObjectList { return &snapshots.VolumeSnapshotContentList{} },
			Validate: snapshots.ValidateContent, ValidateUpdate: snapshots.ValidateContentUpdate,
			ValidateStatus: snapshots.ValidateContentStatus, RequireUpdateRevision: true,
			Columns: snapshotContentColumns(), Source: snapshots.ContentSource,
		}, func(c *snapshots.VolumeSnapshotContent) **snapshots.VolumeSnapshotContentStatus {
			return &c.Status
		}),
		own.Declare[snapshots.VolumeSnapshotClass, struct{}](own.Definition[*snapshots.VolumeSnapshotClass]{
			Kind: snapshots.GroupVersion.WithKind("VolumeSnapshotClass"), Plural: "volumesnapshotclasses",
			ShortNames: []string{"vsclass", "vsclasses"}, Cluster: true,
			New:      func() *snapshots.VolumeSnapshotClass { return &snapshots.VolumeSnapshotClass{} },
			NewList:  func() client.ObjectList { return &snapshots.VolumeSnapshotClassList{} },
			Validate: snapshots.ValidateClass, RequireUpdateRevision: true,
			Columns: snapshotClassColumns(), Source: snapshots.ClassSource, View: true,
		}, nil),
		own.Declare(own.Definition[*snapshots.VolumeGroupSnapshot]{
			Kind: snapshots.Groups.WithKind("VolumeGroupSnapshot"), Plural: "volumegroupsnapshots", ShortNames: []string{"vgs"},
			New:      func() *snapshots.VolumeGroupSnapshot { return &snapshots.VolumeGroupSnapshot{} },
			NewList:  func() client.ObjectList { return &snapshots.VolumeGroupSnapshotList{} },
			Validate: snapshots.ValidateGroup, ValidateUpdate: snapshots.ValidateGroupUpdate,
			ValidateStatus: snapshots.ValidateGroupStatus, RequireUpdateRevision: true,
			Columns: groupColumns(), Source: snapshots.GroupSource, View: true, Edit: true,
		}, func(g *snapshots.VolumeGroupSnapshot) **snapshots.VolumeGroupSnapshotStatus {
			return &g.Status
		}),
		own.Declare(own.Definition[*snapshots.VolumeGroupSnapshotContent]{
			Kind: snapshots.Groups.WithKind("VolumeGroupSnapshotContent"), Plural: "volumegroupsnapshotcontents",
			ShortNames: []string{"vgsc", "vgscs"}, Cluster: true,
			New:     func() *snapshots.VolumeGroupSnapshotContent { return &snapshots.VolumeGroupSnapshotContent{} },
			NewList: func() client.ObjectList { return &snapshots.VolumeGroupSnapshotContentList{} },
			Validate: func(c *snapshots.VolumeGroupSnapshotContent) field.ErrorList {
				return append(snapshots.ValidateGroupContent(c), noLocalGroups(c.Spec.Driver, field.NewPath("spec", "driver"))...)
			}, ValidateUpdate: snapshots.ValidateGroupContentUpdate, ValidateStatus: snapshots.ValidateGroupContentStatus,
			RequireUpdateRevision: true,
			Columns:               groupContentColumns(), Source: snapshots.GroupContentSource,
		}, func(c *snapshots.VolumeGroupSnapshotContent) **snapshots.VolumeGroupSnapshotContentStatus {
			return &c.Status
		}),
		own.Declare[snapshots.VolumeGroupSnapshotClass, struct{}](own.Definition[*snapshots.VolumeGroupSnapshotClass]{
			Kind: snapshots.Groups.WithKind("VolumeGroupSnapshotClass"), Plural: "volumegroupsnapshotclasses",
			ShortNames: []string{"vgsclass", "vgsclasses"}, Cluster: true,
			New:     func() *snapshots.VolumeGroupSnapshotClass { return &snapshots.VolumeGroupSnapshotClass{} },
			NewList: func() client.ObjectList { return &snapshots.VolumeGroupSnapshotClassList{} },
			Validate: func(c *snapshots.VolumeGroupSnapshotClass) field.ErrorList {
				return append(snapshots.ValidateGroupClass(c), noLocalGroups(c.Driver, field.NewPath("driver"))...)
			}, ValidateUpdate: snapshots.ValidateGroupClassUpdate, RequireUpdateRevision: true,
			Columns: groupClassColumns(), Source: snapshots.GroupClassSource, View: true,
		}, nil),
	}
	for _, k := range kinds {
		if k.Row.Group == snapshots.Groups.Group { // upstream's definition stores v1beta2, with the same fields
			stored := *k.Row
			stored.Version = "v1beta2"
			k.Row.Also = []*kind.Resource{&stored}
		}
	}
	return kinds
}

// noLocalGroups refuses group snapshots of local volumes: they are copied one after the other while in use, so the
// snapshots would not share a point in time.
func noLocalGroups(driver string, path *field.Path) field.ErrorList {
	if driver != local.Provisioner {
		return nil
	}
	return field.ErrorList{
		field.Invalid(path, driver,
			fmt.Sprintf("volumes of %s are copied one after the other, so there are no groups of their snapshots, which would "+
				"be of one point in time", local.Provisioner)),
	}
}
