package builtin

import (
	storagev1 "k8s.io/api/storage/v1"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// csiRows returns the rows of the CSI kinds: drivers, nodes, capacities, attachments and attributes classes.
func csiRows() []*kind.Resource {
	group := storagev1.SchemeGroupVersion
	drivers := row[storagev1.CSIDriver, storagev1.CSIDriverList](group, "csidrivers", "csidriver", csidriver.Strategy,
		metaFields)
	nodes := row[storagev1.CSINode, storagev1.CSINodeList](group, "csinodes", "csinode", csinode.Strategy, metaFields)
	nodes.Status = csinode.StatusStrategy
	capacities := row[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](group, "csistoragecapacities",
		"csistoragecapacity", csistoragecapacity.Strategy, metaFields)
	capacities.Table = namesOnly(capacities.GR())
	attachments := row[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](group, "volumeattachments",
		"volumeattachment", volumeattachment.Strategy, metaFields)
	attachments.Status = volumeattachment.StatusStrategy
	classes := row[storagev1.VolumeAttributesClass, storagev1.VolumeAttributesClassList](group, "volumeattributesclasses",
		"volumeattributesclass", volumeattributesclass.Strategy, metaFields)
	classes.ShortNames = []string{"vac"}
	rows := []*kind.Resource{drivers, nodes, capacities, attachments, classes}
	for _, r := range rows {
		r.ReturnsDeleted = r != capacities
	}
	return rows
}
