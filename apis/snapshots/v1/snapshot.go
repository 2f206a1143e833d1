package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeSnapshot requests a snapshot of a claim's volume, or refers to an existing snapshot.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type VolumeSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec VolumeSnapshotSpec `json:"spec"`
	// Status is the observed state. Before using the snapshot, check that it and its VolumeSnapshotContent refer to
	// each other.
	Status *VolumeSnapshotStatus `json:"status,omitempty"`
}

// VolumeSnapshotList is a list of VolumeSnapshots.
//
// +kubebuilder:object:root=true
type VolumeSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeSnapshot `json:"items"`
}

// VolumeSnapshotSpec is the desired state of a VolumeSnapshot.
type VolumeSnapshotSpec struct {
	// Source is the source of the snapshot. It is immutable. Required.
	Source VolumeSnapshotSource `json:"source"`
	// VolumeSnapshotClassName is the name of the VolumeSnapshotClass. Defaults to the default class for the driver
	// of the claim's volume.
	VolumeSnapshotClassName *string `json:"volumeSnapshotClassName,omitempty"`
}

// VolumeSnapshotSource is the source of a snapshot. Exactly one field must be set. It is immutable.
type VolumeSnapshotSource struct {
	// PersistentVolumeClaimName is the name of a claim in the snapshot's namespace whose volume to take a snapshot
	// of.
	PersistentVolumeClaimName *string `json:"persistentVolumeClaimName,omitempty"`
	// VolumeSnapshotContentName is the name of the VolumeSnapshotContent of an existing snapshot.
	VolumeSnapshotContentName *string `json:"volumeSnapshotContentName,omitempty"`
}

// VolumeSnapshotStatus is the observed state of a VolumeSnapshot.
type VolumeSnapshotStatus struct {
	// BoundVolumeSnapshotContentName is the name of the bound VolumeSnapshotContent.
	BoundVolumeSnapshotContentName *string `json:"boundVolumeSnapshotContentName,omitempty"`
	// CreationTime is when the snapshot was taken, as reported by its driver.
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// ReadyToUse is true if a volume can be restored from the snapshot.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// RestoreSize is the minimum size of a volume restored from the snapshot.
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
	// Error is the last error while taking the snapshot. The operation is retried.
	Error *VolumeSnapshotError `json:"error,omitempty"`
	// VolumeGroupSnapshotName is the name of the VolumeGroupSnapshot that the snapshot belongs to.
	VolumeGroupSnapshotName *string `json:"volumeGroupSnapshotName,omitempty"`
}

// VolumeSnapshotError is an error while taking a snapshot.
type VolumeSnapshotError struct {
	// Time is when the error occurred.
	Time *metav1.Time `json:"time,omitempty"`
	// Message describes the error.
	Message *string `json:"message,omitempty"`
}
