package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeSnapshotContent is a snapshot in the storage of a driver.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
type VolumeSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which snapshot it is.
	Spec VolumeSnapshotContentSpec `json:"spec"`
	// Status is what the driver says about the snapshot.
	Status *VolumeSnapshotContentStatus `json:"status,omitempty"`
}

// VolumeSnapshotContentList is a list of contents.
//
// +kubebuilder:object:root=true
type VolumeSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeSnapshotContent `json:"items"`
}

// VolumeSnapshotContentSpec says which snapshot a content is.
type VolumeSnapshotContentSpec struct {
	// VolumeSnapshotRef names the VolumeSnapshot, by namespace and name, that
	// the content is for. Its UID is set when they are bound. Required.
	VolumeSnapshotRef corev1.ObjectReference `json:"volumeSnapshotRef"`
	// DeletionPolicy says what becomes of the content and the snapshot when the
	// VolumeSnapshot is deleted: Delete or Retain. Required.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy"`
	// Driver is the name of the CSI driver, or coracle.dev/local for volumes of
	// this cluster's own. Required.
	Driver string `json:"driver"`
	// VolumeSnapshotClassName is the name of the VolumeSnapshotClass with which
	// the snapshot was taken. The class may have changed since.
	VolumeSnapshotClassName *string `json:"volumeSnapshotClassName,omitempty"`
	// Source is the volume of which there is to be a snapshot, or a snapshot
	// that exists. It cannot be changed. Required.
	Source VolumeSnapshotContentSource `json:"source"`
	// SourceVolumeMode is the mode of the volume, Filesystem or Block. It
	// cannot be changed once it is set.
	SourceVolumeMode *corev1.PersistentVolumeMode `json:"sourceVolumeMode,omitempty"`
}

// VolumeSnapshotContentSource is what a content is of. Exactly one field is
// set, and cannot be changed.
type VolumeSnapshotContentSource struct {
	// VolumeHandle is the driver's name for the volume of which a snapshot is
	// to be taken.
	VolumeHandle *string `json:"volumeHandle,omitempty"`
	// SnapshotHandle is the driver's name for a snapshot that exists.
	SnapshotHandle *string `json:"snapshotHandle,omitempty"`
}

// VolumeSnapshotContentStatus is what a driver says about a snapshot.
type VolumeSnapshotContentStatus struct {
	// SnapshotHandle is the driver's name for the snapshot. It is not set
	// before the snapshot has been taken.
	SnapshotHandle *string `json:"snapshotHandle,omitempty"`
	// CreationTime is when the snapshot was taken, in nanoseconds since 1970.
	CreationTime *int64 `json:"creationTime,omitempty"`
	// RestoreSize is the least size of a volume that is made from the snapshot,
	// in bytes.
	RestoreSize *int64 `json:"restoreSize,omitempty"`
	// ReadyToUse says whether a volume can be made from the snapshot.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// Error is the last error, if the snapshot could not be taken.
	Error *VolumeSnapshotError `json:"error,omitempty"`
	// VolumeGroupSnapshotHandle is the driver's name for the group of snapshots
	// that it is a part of.
	VolumeGroupSnapshotHandle *string `json:"volumeGroupSnapshotHandle,omitempty"`
}

// DeletionPolicy says what becomes of a snapshot when its object is deleted.
type DeletionPolicy string

const (
	// Delete deletes the content and the snapshot.
	Delete DeletionPolicy = "Delete"
	// Retain keeps both.
	Retain DeletionPolicy = "Retain"
)
