package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeSnapshot asks for a snapshot of a claim's volume, or for one that
// exists already.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type VolumeSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec VolumeSnapshotSpec `json:"spec"`
	// Status is the observed state. Before the snapshot is used, check that it
	// and its VolumeSnapshotContent name each other.
	Status *VolumeSnapshotStatus `json:"status,omitempty"`
}

// VolumeSnapshotList is a list of snapshots.
//
// +kubebuilder:object:root=true
type VolumeSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeSnapshot `json:"items"`
}

// VolumeSnapshotSpec says of what there is to be a snapshot.
type VolumeSnapshotSpec struct {
	// Source is what the snapshot is made from. It cannot be changed. Required.
	Source VolumeSnapshotSource `json:"source"`
	// VolumeSnapshotClassName is the name of the VolumeSnapshotClass. Without
	// it, the default class of the driver of the claim's volume is used.
	VolumeSnapshotClassName *string `json:"volumeSnapshotClassName,omitempty"`
}

// VolumeSnapshotSource is what a snapshot is made from. Exactly one field is
// set, and cannot be changed.
type VolumeSnapshotSource struct {
	// PersistentVolumeClaimName is the name of a claim in the snapshot's
	// namespace. A snapshot of its volume is taken.
	PersistentVolumeClaimName *string `json:"persistentVolumeClaimName,omitempty"`
	// VolumeSnapshotContentName is the name of the VolumeSnapshotContent of a
	// snapshot that exists already.
	VolumeSnapshotContentName *string `json:"volumeSnapshotContentName,omitempty"`
}

// VolumeSnapshotStatus is what is known of a snapshot.
type VolumeSnapshotStatus struct {
	// BoundVolumeSnapshotContentName is the name of the VolumeSnapshotContent.
	BoundVolumeSnapshotContentName *string `json:"boundVolumeSnapshotContentName,omitempty"`
	// CreationTime is when the snapshot was taken, as its driver says.
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// ReadyToUse says whether a volume can be made from the snapshot.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// RestoreSize is the least size of a volume that is made from the snapshot.
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
	// Error is the last error, if the snapshot could not be taken. It is tried
	// again.
	Error *VolumeSnapshotError `json:"error,omitempty"`
	// VolumeGroupSnapshotName is the name of the VolumeGroupSnapshot that the
	// snapshot is a part of.
	VolumeGroupSnapshotName *string `json:"volumeGroupSnapshotName,omitempty"`
}

// VolumeSnapshotError is an error of a snapshot.
type VolumeSnapshotError struct {
	// Time is when it occurred.
	Time *metav1.Time `json:"time,omitempty"`
	// Message describes it.
	Message *string `json:"message,omitempty"`
}
