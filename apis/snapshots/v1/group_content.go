package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeGroupSnapshotContent is a group of snapshots in the storage of a driver.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
type VolumeGroupSnapshotContent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec VolumeGroupSnapshotContentSpec `json:"spec"`
	// Status is the state of the group as reported by the driver.
	Status *VolumeGroupSnapshotContentStatus `json:"status,omitempty"`
}

// VolumeGroupSnapshotContentList is a list of VolumeGroupSnapshotContents.
//
// +kubebuilder:object:root=true
type VolumeGroupSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeGroupSnapshotContent `json:"items"`
}

// VolumeGroupSnapshotContentSpec is the desired state of a VolumeGroupSnapshotContent.
type VolumeGroupSnapshotContentSpec struct {
	// VolumeGroupSnapshotRef is the namespace and name of the VolumeGroupSnapshot for this content. Its UID is set
	// when they are bound. It is immutable. Required.
	VolumeGroupSnapshotRef corev1.ObjectReference `json:"volumeGroupSnapshotRef"`
	// DeletionPolicy specifies what happens to the content and the group when the VolumeGroupSnapshot is deleted:
	// Delete or Retain. Required.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy"`
	// Driver is the name of the CSI driver. It is immutable. Required.
	Driver string `json:"driver"`
	// VolumeGroupSnapshotClassName is the name of the VolumeGroupSnapshotClass used to take the group. It is
	// immutable once set.
	VolumeGroupSnapshotClassName *string `json:"volumeGroupSnapshotClassName,omitempty"`
	// Source is the volumes to take snapshots of, or an existing group. It is immutable. Required.
	Source VolumeGroupSnapshotContentSource `json:"source"`
}

// VolumeGroupSnapshotContentSource is the source of a content. Exactly one field must be set. It is immutable.
type VolumeGroupSnapshotContentSource struct {
	// VolumeHandles are the driver's IDs of the volumes to take snapshots of together.
	VolumeHandles []string `json:"volumeHandles,omitempty"`
	// GroupSnapshotHandles are the driver's IDs of an existing group.
	GroupSnapshotHandles *GroupSnapshotHandles `json:"groupSnapshotHandles,omitempty"`
}

// GroupSnapshotHandles are a driver's IDs of a group and its snapshots.
type GroupSnapshotHandles struct {
	// VolumeGroupSnapshotHandle is the driver's ID of the group. Required.
	VolumeGroupSnapshotHandle string `json:"volumeGroupSnapshotHandle"`
	// VolumeSnapshotHandles are the driver's IDs of the snapshots of the group. Required.
	VolumeSnapshotHandles []string `json:"volumeSnapshotHandles"`
}

// VolumeGroupSnapshotContentStatus is the state of a group as reported by its driver.
type VolumeGroupSnapshotContentStatus struct {
	// VolumeGroupSnapshotHandle is the driver's ID of the group. It is set once the group has been taken, and
	// immutable from then on.
	VolumeGroupSnapshotHandle *string `json:"volumeGroupSnapshotHandle,omitempty"`
	// CreationTime is when the group was taken.
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// ReadyToUse is true if volumes can be restored from all snapshots of the group.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// Error is the last error while taking the group.
	Error *VolumeSnapshotError `json:"error,omitempty"`
	// VolumeSnapshotInfoList has the snapshots of the group.
	VolumeSnapshotInfoList []VolumeSnapshotInfo `json:"volumeSnapshotInfoList,omitempty"`
}

// VolumeSnapshotInfo is the state of one snapshot of a group as reported by its driver.
type VolumeSnapshotInfo struct {
	// VolumeHandle is the driver's ID of the volume.
	VolumeHandle string `json:"volumeHandle,omitempty"`
	// SnapshotHandle is the driver's ID of the snapshot.
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	// CreationTime is when the snapshot was taken, in nanoseconds since 1970.
	CreationTime *int64 `json:"creationTime,omitempty"`
	// ReadyToUse is true if a volume can be restored from the snapshot.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// RestoreSize is the minimum size of a volume restored from the snapshot, in bytes.
	RestoreSize *int64 `json:"restoreSize,omitempty"`
}
