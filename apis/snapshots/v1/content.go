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

	// Spec is the desired state.
	Spec VolumeSnapshotContentSpec `json:"spec"`
	// Status is the state of the snapshot as reported by the driver.
	Status *VolumeSnapshotContentStatus `json:"status,omitempty"`
}

// VolumeSnapshotContentList is a list of VolumeSnapshotContents.
//
// +kubebuilder:object:root=true
type VolumeSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeSnapshotContent `json:"items"`
}

// VolumeSnapshotContentSpec is the desired state of a VolumeSnapshotContent.
type VolumeSnapshotContentSpec struct {
	// VolumeSnapshotRef is the namespace and name of the VolumeSnapshot for this content. Its UID is set when they
	// are bound. Required.
	VolumeSnapshotRef corev1.ObjectReference `json:"volumeSnapshotRef"`
	// DeletionPolicy specifies what happens to the content and the snapshot when the VolumeSnapshot is deleted:
	// Delete or Retain. Required.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy"`
	// Driver is the name of the CSI driver, or coracle.dev/local for local volumes of this cluster. Required.
	Driver string `json:"driver"`
	// VolumeSnapshotClassName is the name of the VolumeSnapshotClass used to take the snapshot. The class may have
	// changed since.
	VolumeSnapshotClassName *string `json:"volumeSnapshotClassName,omitempty"`
	// Source is the volume to take a snapshot of, or an existing snapshot. It is immutable. Required.
	Source VolumeSnapshotContentSource `json:"source"`
	// SourceVolumeMode is the mode of the volume, Filesystem or Block. It is immutable once set.
	SourceVolumeMode *corev1.PersistentVolumeMode `json:"sourceVolumeMode,omitempty"`
}

// VolumeSnapshotContentSource is the source of a content. Exactly one field must be set. It is immutable.
type VolumeSnapshotContentSource struct {
	// VolumeHandle is the driver's ID of the volume to take a snapshot of.
	VolumeHandle *string `json:"volumeHandle,omitempty"`
	// SnapshotHandle is the driver's ID of an existing snapshot.
	SnapshotHandle *string `json:"snapshotHandle,omitempty"`
}

// VolumeSnapshotContentStatus is the state of a snapshot as reported by its driver.
type VolumeSnapshotContentStatus struct {
	// SnapshotHandle is the driver's ID of the snapshot. It is set once the snapshot has been taken.
	SnapshotHandle *string `json:"snapshotHandle,omitempty"`
	// CreationTime is when the snapshot was taken, in nanoseconds since 1970.
	CreationTime *int64 `json:"creationTime,omitempty"`
	// RestoreSize is the minimum size of a volume restored from the snapshot, in bytes.
	RestoreSize *int64 `json:"restoreSize,omitempty"`
	// ReadyToUse is true if a volume can be restored from the snapshot.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// Error is the last error while taking the snapshot.
	Error *VolumeSnapshotError `json:"error,omitempty"`
	// VolumeGroupSnapshotHandle is the driver's ID of the group that the snapshot belongs to.
	VolumeGroupSnapshotHandle *string `json:"volumeGroupSnapshotHandle,omitempty"`
}

// DeletionPolicy specifies what happens to a snapshot when its object is deleted.
type DeletionPolicy string

const (
	// Delete deletes the content and the snapshot.
	Delete DeletionPolicy = "Delete"
	// Retain keeps the content and the snapshot.
	Retain DeletionPolicy = "Retain"
)
