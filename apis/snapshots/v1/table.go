package v1

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

func columns(rest ...metav1.TableColumnDefinition) []metav1.TableColumnDefinition {
	all := append([]metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
	}, rest...)
	return append(all, metav1.TableColumnDefinition{Name: "Age", Type: "date", Description: "Time since its creation"})
}

// Columns returns the columns of kubectl get volumesnapshots, as upstream.
func Columns() []metav1.TableColumnDefinition {
	return columns(
		metav1.TableColumnDefinition{
			Name:        "ReadyToUse",
			Type:        "boolean",
			Description: "Whether a volume can be made from the snapshot",
		},
		metav1.TableColumnDefinition{Name: "SourcePVC", Type: "string", Description: "The claim of whose volume it is"},
		metav1.TableColumnDefinition{
			Name:        "SourceSnapshotContent",
			Type:        "string",
			Description: "The content of a snapshot that existed already",
		},
		metav1.TableColumnDefinition{
			Name:        "RestoreSize",
			Type:        "string",
			Description: "The least size of a volume that is made from it",
		},
		metav1.TableColumnDefinition{Name: "SnapshotClass", Type: "string", Description: "Its class"},
		metav1.TableColumnDefinition{
			Name:        "SnapshotContent",
			Type:        "string",
			Description: "The content that it is bound to, or is to be",
		},
		metav1.TableColumnDefinition{Name: "CreationTime", Type: "date", Description: "Time since it was taken"})
}

// Cells returns a snapshot's values for Columns.
func Cells(s *VolumeSnapshot, now time.Time) []any {
	status := s.Status
	if status == nil {
		status = &VolumeSnapshotStatus{}
	}
	size, taken := "", ""
	if status.RestoreSize != nil {
		size = status.RestoreSize.String()
	}
	if status.CreationTime != nil {
		taken = duration.HumanDuration(now.Sub(status.CreationTime.Time))
	}
	return []any{
		s.Name, flag(status.ReadyToUse), value(s.Spec.Source.PersistentVolumeClaimName),
		value(s.Spec.Source.VolumeSnapshotContentName), size,
		value(s.Spec.VolumeSnapshotClassName), value(status.BoundVolumeSnapshotContentName), taken,
		common.Age(s.CreationTimestamp.Time, now),
	}
}

// ContentColumns returns the columns of kubectl get volumesnapshotcontents, as upstream.
func ContentColumns() []metav1.TableColumnDefinition {
	return columns(
		metav1.TableColumnDefinition{
			Name:        "ReadyToUse",
			Type:        "boolean",
			Description: "Whether a volume can be made from the snapshot",
		},
		metav1.TableColumnDefinition{
			Name:        "RestoreSize",
			Type:        "integer",
			Description: "The least size of a volume that is made from it, in bytes",
		},
		metav1.TableColumnDefinition{
			Name:        "DeletionPolicy",
			Type:        "string",
			Description: "What becomes of it when its VolumeSnapshot is deleted",
		},
		metav1.TableColumnDefinition{Name: "Driver", Type: "string", Description: "The driver that has it"},
		metav1.TableColumnDefinition{Name: "VolumeSnapshotClass", Type: "string", Description: "Its class"},
		metav1.TableColumnDefinition{Name: "VolumeSnapshot", Type: "string", Description: "The name of its VolumeSnapshot"},
		metav1.TableColumnDefinition{
			Name:        "VolumeSnapshotNamespace",
			Type:        "string",
			Description: "The namespace of its VolumeSnapshot",
		})
}

// ContentCells returns a content's values for ContentColumns.
func ContentCells(c *VolumeSnapshotContent, now time.Time) []any {
	status := c.Status
	if status == nil {
		status = &VolumeSnapshotContentStatus{}
	}
	size := ""
	if status.RestoreSize != nil {
		size = strconv.FormatInt(*status.RestoreSize, 10)
	}
	return []any{
		c.Name, flag(status.ReadyToUse), size, string(c.Spec.DeletionPolicy), c.Spec.Driver,
		value(c.Spec.VolumeSnapshotClassName),
		c.Spec.VolumeSnapshotRef.Name, c.Spec.VolumeSnapshotRef.Namespace, common.Age(c.CreationTimestamp.Time, now),
	}
}

// ClassColumns returns the columns of kubectl get volumesnapshotclasses, as upstream.
func ClassColumns() []metav1.TableColumnDefinition {
	return columns(
		metav1.TableColumnDefinition{Name: "Driver", Type: "string", Description: "The driver that takes snapshots"},
		metav1.TableColumnDefinition{
			Name:        "DeletionPolicy",
			Type:        "string",
			Description: "What becomes of a snapshot when its VolumeSnapshot is deleted",
		})
}

// ClassCells returns a class's values for ClassColumns.
func ClassCells(c *VolumeSnapshotClass, now time.Time) []any {
	return []any{c.Name, c.Driver, string(c.DeletionPolicy), common.Age(c.CreationTimestamp.Time, now)}
}

// GroupColumns returns the columns of kubectl get volumegroupsnapshots, as upstream.
func GroupColumns() []metav1.TableColumnDefinition {
	return columns(
		metav1.TableColumnDefinition{
			Name:        "ReadyToUse",
			Type:        "boolean",
			Description: "Whether volumes can be made from all its snapshots",
		},
		metav1.TableColumnDefinition{Name: "VolumeGroupSnapshotClass", Type: "string", Description: "Its class"},
		metav1.TableColumnDefinition{
			Name:        "VolumeGroupSnapshotContent",
			Type:        "string",
			Description: "The content that it is bound to, or is to be",
		},
		metav1.TableColumnDefinition{Name: "CreationTime", Type: "date", Description: "Time since it was taken"})
}

// GroupCells returns a group's values for GroupColumns.
func GroupCells(g *VolumeGroupSnapshot, now time.Time) []any {
	status := g.Status
	if status == nil {
		status = &VolumeGroupSnapshotStatus{}
	}
	taken := ""
	if status.CreationTime != nil {
		taken = duration.HumanDuration(now.Sub(status.CreationTime.Time))
	}
	return []any{
		g.Name, flag(status.ReadyToUse), value(g.Spec.VolumeGroupSnapshotClassName),
		value(status.BoundVolumeGroupSnapshotContentName), taken,
		common.Age(g.CreationTimestamp.Time, now),
	}
}

// GroupContentColumns returns the columns of kubectl get volumegroupsnapshotcontents, as upstream.
func GroupContentColumns() []metav1.TableColumnDefinition {
	return columns(
		metav1.TableColumnDefinition{
			Name:        "ReadyToUse",
			Type:        "boolean",
			Description: "Whether volumes can be made from all its snapshots",
		},
		metav1.TableColumnDefinition{
			Name:        "DeletionPolicy",
			Type:        "string",
			Description: "What becomes of it when its VolumeGroupSnapshot is deleted",
		},
		metav1.TableColumnDefinition{Name: "Driver", Type: "string", Description: "The driver that has it"},
		metav1.TableColumnDefinition{Name: "VolumeGroupSnapshotClass", Type: "string", Description: "Its class"},
		metav1.TableColumnDefinition{
			Name:        "VolumeGroupSnapshotNamespace",
			Type:        "string",
			Description: "The namespace of its VolumeGroupSnapshot",
		},
		metav1.TableColumnDefinition{
			Name:        "VolumeGroupSnapshot",
			Type:        "string",
			Description: "The name of its VolumeGroupSnapshot",
		})
}

// GroupContentCells returns a content's values for GroupContentColumns.
func GroupContentCells(c *VolumeGroupSnapshotContent, now time.Time) []any {
	var ready *bool
	if c.Status != nil {
		ready = c.Status.ReadyToUse
	}
	return []any{
		c.Name, flag(ready), string(c.Spec.DeletionPolicy), c.Spec.Driver, value(c.Spec.VolumeGroupSnapshotClassName),
		c.Spec.VolumeGroupSnapshotRef.Namespace, c.Spec.VolumeGroupSnapshotRef.Name,
		common.Age(c.CreationTimestamp.Time, now),
	}
}

// GroupClassColumns returns the columns of kubectl get volumegroupsnapshotclasses, as upstream.
func GroupClassColumns() []metav1.TableColumnDefinition {
	return columns(
		metav1.TableColumnDefinition{
			Name:        "Driver",
			Type:        "string",
			Description: "The driver that takes groups of snapshots",
		},
		metav1.TableColumnDefinition{
			Name:        "DeletionPolicy",
			Type:        "string",
			Description: "What becomes of a group when its VolumeGroupSnapshot is deleted",
		})
}

// GroupClassCells returns a class's values for GroupClassColumns.
func GroupClassCells(c *VolumeGroupSnapshotClass, now time.Time) []any {
	return []any{c.Name, c.Driver, string(c.DeletionPolicy), common.Age(c.CreationTimestamp.Time, now)}
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func flag(b *bool) string {
	if b == nil {
		return ""
	}
	return strconv.FormatBool(*b)
}
