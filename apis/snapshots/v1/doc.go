// Package v1 is the API of volume snapshots and groups of them: upstream's groups snapshot.storage.k8s.io and
// groupsnapshot.storage.k8s.io, which other clusters install as custom resources.
//
// Its invariant: the fields equal upstream's v1, so that the sidecars of CSI drivers and backup programs work with
// it. It does not use upstream's client module, which has no comments for kubectl explain.
//
//	Kind                   Written by                                   Content
//	VolumeSnapshotClass    administrators                               the driver and the deletion policy
//	VolumeSnapshot         users; status: the controller                the claim to take a snapshot of
//	VolumeSnapshotContent  the controller, administrators;              the snapshot in the driver's storage
//	                       status: the driver's csi-snapshotter
//
// VolumeGroupSnapshotClass, VolumeGroupSnapshot and VolumeGroupSnapshotContent do the same for several claims at
// once. pkg/control/controllers/volumesnapshot also creates a VolumeSnapshot for each snapshot of a group.
//
// +kubebuilder:object:generate=true
// +groupName=snapshot.storage.k8s.io
package v1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
