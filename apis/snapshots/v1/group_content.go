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

	// Spec says which group it is.
	Spec VolumeGroupSnapshotContentSpec `json:"spec"`
	// Status is what the driver says about the group.
	Status *VolumeGroupSnapshotContentStatus `json:"status,omitempty"`
}

// VolumeGroupSnapshotContentList is a list of contents.
//
// +kubebuilder:object:root=true
type VolumeGroupSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeGroupSnapshotContent `json:"items"`
}

// VolumeGroupSnapshotContentSpec says which group a content is.
type VolumeGroupSnapshotContentSpec struct {
	// VolumeGroupSnapshotRef names the VolumeGroupSnapshot, by namespace and
	// name, that the content is for. Its UID is set when they are bound. It
	// cannot be changed. Required.
	VolumeGroupSnapshotRef corev1.ObjectReference `json:"volumeGroupSnapshotRef"`
	// DeletionPolicy says what becomes of the content and the group when the
	// VolumeGroupSnapshot is deleted: Delete or Retain. Required.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy"`
	// Driver is the name of the CSI driver. It cannot be changed. Required.
	Driver string `json:"driver"`
	// VolumeGroupSnapshotClassName is the name of the VolumeGroupSnapshotClass
	// with which the group was taken. It cannot be changed once it is set.
	VolumeGroupSnapshotClassName *string `json:"volumeGroupSnapshotClassName,omitempty"`
	// Source is the volumes of which there are to be snapshots, or a group that
	// exists. It cannot be changed. Required.
	Source VolumeGroupSnapshotContentSource `json:"source"`
}

// VolumeGroupSnapshotContentSource is what a content is of. Exactly one field
// is set, and cannot be changed.
type VolumeGroupSnapshotContentSource struct {
	// VolumeHandles are the driver's names for the volumes of which snapshots
	// are to be taken together.
	VolumeHandles []string `json:"volumeHandles,omitempty"`
	// GroupSnapshotHandles are the driver's names for a group that exists.
	GroupSnapshotHandles *GroupSnapshotHandles `json:"groupSnapshotHandles,omitempty"`
}

// GroupSnapshotHandles are a driver's names for a group and its snapshots.
type GroupSnapshotHandles struct {
	// VolumeGroupSnapshotHandle is the driver's name for the group. Required.
	VolumeGroupSnapshotHandle string `json:"volumeGroupSnapshotHandle"`
	// VolumeSnapshotHandles are the driver's names for the snapshots of the
	// group. Required.
	VolumeSnapshotHandles []string `json:"volumeSnapshotHandles"`
}

// VolumeGroupSnapshotContentStatus is what a driver says about a group.
type VolumeGroupSnapshotContentStatus struct {
	// VolumeGroupSnapshotHandle is the driver's name for the group. It is not
	// set before the group has been taken, and not changed then.
	VolumeGroupSnapshotHandle *string `json:"volumeGroupSnapshotHandle,omitempty"`
	// CreationTime is when the group was taken.
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// ReadyToUse says whether volumes can be made from all snapshots of the
	// group.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// Error is the last error, if the group could not be taken.
	Error *VolumeSnapshotError `json:"error,omitempty"`
	// VolumeSnapshotInfoList are the snapshots of the group.
	VolumeSnapshotInfoList []VolumeSnapshotInfo `json:"volumeSnapshotInfoList,omitempty"`
}

// VolumeSnapshotInfo is what a driver says about one snapshot of a group.
type VolumeSnapshotInfo struct {
	// VolumeHandle is the driver's name for the volume of which it is.
	VolumeHandle string `json:"volumeHandle,omitempty"`
	// SnapshotHandle is the driver's name for the snapshot.
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
	// CreationTime is when it was taken, in nanoseconds since 1970.
	CreationTime *int64 `json:"creationTime,omitempty"`
	// ReadyToUse says whether a volume can be made from it.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// RestoreSize is the least size of a volume that is made from it, in bytes.
	RestoreSize *int64 `json:"restoreSize,omitempty"`
}
