// Package v1 is the API of volume snapshots and of groups of them: upstream's groups snapshot.storage.k8s.io and
// groupsnapshot.storage.k8s.io, which elsewhere are installed as custom resources.
//
// Its invariant: the fields equal upstream's v1, so that CSI drivers' sidecars and backup programs work with it. The
// types are written here because upstream's client module brings no comments for kubectl explain.
//
//	Kind                   Written by                                        Says
//	VolumeSnapshotClass    administrators      which driver takes snapshots, and what becomes of them
//	VolumeSnapshot         users               which claim a snapshot is taken of; the controller writes its status
//	VolumeSnapshotContent  the controller, administrators  the snapshot in the driver's storage
//	                       its status by the driver's csi-snapshotter
//
// VolumeGroupSnapshotClass, VolumeGroupSnapshot and VolumeGroupSnapshotContent are the same for several claims at once.
// The driver's snapshots of a group are VolumeSnapshots as well, which pkg/control/controllers/volumesnapshot makes.
//
// +kubebuilder:object:generate=true
// +groupName=snapshot.storage.k8s.io
package v1

//go:generate go tool -modfile=../../../hack/tools/go.mod controller-gen object paths=.
