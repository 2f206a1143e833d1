package localsnapshot

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
)

// Restore is the input of PlanRestore.
type Restore struct {
	Claim *corev1.PersistentVolumeClaim
	Class *storagev1.StorageClass
	// Snapshot and its Content, or From and its Volume, are the source. They are nil if they do not exist.
	Snapshot *snapshots.VolumeSnapshot
	Content  *snapshots.VolumeSnapshotContent
	From     *corev1.PersistentVolumeClaim
	Volume   *corev1.PersistentVolume
	Nodes    []*corev1.Node
}

// wanted reports whether a claim waits for a local volume that is a copy. The claims' reconciler has checked
// everything else.
func wanted(c *corev1.PersistentVolumeClaim) bool {
	return c.DeletionTimestamp == nil && c.Spec.VolumeName == "" &&
		c.Annotations[helpers.AnnStorageProvisioner] == storage.Provisioner &&
		(c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil)
}

// source returns the kind and name of a claim's source, or why the source is invalid.
func source(c *corev1.PersistentVolumeClaim) (kind, name, why string) {
	ref := c.Spec.DataSourceRef
	if ref == nil {
		s := c.Spec.DataSource
		ref = &corev1.TypedObjectReference{APIGroup: s.APIGroup, Kind: s.Kind, Name: s.Name}
	}
	group := ""
	if ref.APIGroup != nil {
		group = *ref.APIGroup
	}
	switch {
	case ref.Namespace != nil && *ref.Namespace != "" && *ref.Namespace != c.Namespace:
		return "", "", "dataSourceRef.namespace must be the claim's own"
	case group == snapshots.GroupVersion.Group && ref.Kind == "VolumeSnapshot":
		return storage.FromSnapshot, ref.Name, ""
	case group == "" && ref.Kind == "PersistentVolumeClaim":
		return storage.FromVolume, ref.Name, ""
	}
	return "", "", fmt.Sprintf("the data source is a %s: local volumes are copies of a VolumeSnapshot or a "+
		"PersistentVolumeClaim", ref.Kind)
}

// PlanRestore returns a claim's volume with an annotation that names its source, or why there is none yet.
func PlanRestore(r Restore) (*corev1.PersistentVolume, string) {
	if r.Class == nil {
		return nil, fmt.Sprintf("storageclass.storage.k8s.io %q not found", helpers.GetPersistentVolumeClaimClass(r.Claim))
	}
	if r.Class.Provisioner != storage.Provisioner {
		return nil, fmt.Sprintf("the class is of the provisioner %q", r.Class.Provisioner)
	}
	if why := storage.Impossible(r.Claim, r.Class); why != "" {
		return nil, why
	}
	kind, name, why := source(r.Claim)
	if why != "" {
		return nil, why
	}
	var node *corev1.Node
	var of string
	var least int64
	if kind == storage.FromSnapshot {
		node, of, least, why = r.ofSnapshot(name)
	} else {
		node, of, least, why = r.ofClaim(name)
	}
	size := r.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case why != "":
		return nil, why
	case node == nil:
		return nil, "the node that holds the source of the copy does not exist"
	case node.Annotations[storage.DirectoryAnnotation] == "":
		return nil, fmt.Sprintf("node %q has no local volumes", node.Name)
	case size.Value() < least:
		return nil, fmt.Sprintf("requested volume size %d is less than the size %d of the source", size.Value(),
			least)
	case len(r.Class.AllowedTopologies) > 0 && !storage.InTopology(r.Class.AllowedTopologies, node.Labels):
		return nil, fmt.Sprintf("the source is on node %q, which is not in the class's allowedTopologies",
			node.Name)
	}
	v := storage.NewVolume(r.Claim, r.Class, node)
	v.Annotations[storage.ContentAnnotation] = kind + "/" + of
	return v, ""
}

func (r Restore) ofSnapshot(name string) (node *corev1.Node, snapshot string, size int64, why string) {
	v, c := r.Snapshot, r.Content
	switch {
	case v == nil:
		return nil, "", 0, fmt.Sprintf("volumesnapshot %q not found", name)
	case v.DeletionTimestamp != nil:
		return nil, "", 0, fmt.Sprintf("volumesnapshot %q is being deleted", name)
	case v.Status == nil || v.Status.ReadyToUse == nil || !*v.Status.ReadyToUse || c == nil || c.Status == nil ||
		c.Status.SnapshotHandle == nil:
		return nil, "", 0, fmt.Sprintf("volumesnapshot %q is not ready to use", name)
	case c.Spec.VolumeSnapshotRef.UID != v.UID || c.DeletionTimestamp != nil:
		return nil, "", 0, fmt.Sprintf("volumesnapshot %q is not bound to its content", name)
	case c.Spec.Driver != storage.Provisioner:
		return nil, "", 0, fmt.Sprintf("volumesnapshot %q is of the driver %q, and the claim's class of %q", name,
			c.Spec.Driver, storage.Provisioner)
	case c.Spec.SourceVolumeMode != nil && *c.Spec.SourceVolumeMode != storage.ModeOf(r.Claim.Spec.VolumeMode):
		return nil, "", 0, fmt.Sprintf("volumesnapshot %q is of a volume of volumeMode %s", name, *c.Spec.SourceVolumeMode)
	}
	s := State{Nodes: r.Nodes}
	node, snapshot, ok := s.split(*c.Status.SnapshotHandle)
	if !ok {
		return nil, "", 0, fmt.Sprintf("volumesnapshot %q has the handle %q, which does not name a local snapshot", name,
			*c.Status.SnapshotHandle)
	}
	if c.Status.RestoreSize != nil {
		size = *c.Status.RestoreSize
	}
	return node, snapshot, size, ""
}

func (r Restore) ofClaim(name string) (node *corev1.Node, volume string, size int64, why string) {
	c, v := r.From, r.Volume
	switch {
	case c == nil:
		return nil, "", 0, fmt.Sprintf("persistentvolumeclaim %q not found", name)
	case c.DeletionTimestamp != nil:
		return nil, "", 0, fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
	case c.Status.Phase != corev1.ClaimBound || v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID:
		return nil, "", 0, fmt.Sprintf("persistentvolumeclaim %q is not bound", name)
	case !storage.Ours(v):
		return nil, "", 0, fmt.Sprintf("the volume of persistentvolumeclaim %q is not of %s", name, storage.Provisioner)
	case storage.ModeOf(v.Spec.VolumeMode) != storage.ModeOf(r.Claim.Spec.VolumeMode):
		return nil, "", 0, fmt.Sprintf("persistentvolumeclaim %q is of volumeMode %s", name,
			storage.ModeOf(v.Spec.VolumeMode))
	}
	capacity := v.Spec.Capacity[corev1.ResourceStorage]
	return State{Nodes: r.Nodes}.host(storage.HostOf(v)), v.Name, capacity.Value(), ""
}
