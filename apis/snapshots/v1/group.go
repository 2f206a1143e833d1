package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VolumeGroupSnapshot requests snapshots of the volumes of several claims at one point in time, or refers to an
// existing group of snapshots.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type VolumeGroupSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec VolumeGroupSnapshotSpec `json:"spec"`
	// Status is the observed state. Before using the group, check that it and its VolumeGroupSnapshotContent refer
	// to each other.
	Status *VolumeGroupSnapshotStatus `json:"status,omitempty"`
}

// VolumeGroupSnapshotList is a list of VolumeGroupSnapshots.
//
// +kubebuilder:object:root=true
type VolumeGroupSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeGroupSnapshot `json:"items"`
}

// VolumeGroupSnapshotSpec is the desired state of a VolumeGroupSnapshot.
type VolumeGroupSnapshotSpec struct {
	// Source is the source of the group. It is immutable. Required.
	Source VolumeGroupSnapshotSource `json:"source"`
	// VolumeGroupSnapshotClassName is the name of the VolumeGroupSnapshotClass. Defaults to the default class for
	// the driver of the claims' volumes.
	VolumeGroupSnapshotClassName *string `json:"volumeGroupSnapshotClassName,omitempty"`
}

// VolumeGroupSnapshotSource is the source of a group. Exactly one field must be set. It is immutable.
type VolumeGroupSnapshotSource struct {
	// Selector selects claims in the group's namespace by their labels. Snapshots of their volumes are taken. The
	// selection is made once: label changes after the creation of the VolumeGroupSnapshotContent have no effect.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// VolumeGroupSnapshotContentName is the name of the VolumeGroupSnapshotContent of an existing group.
	VolumeGroupSnapshotContentName *string `json:"volumeGroupSnapshotContentName,omitempty"`
}

// VolumeGroupSnapshotStatus is the observed state of a VolumeGroupSnapshot.
type VolumeGroupSnapshotStatus struct {
	// BoundVolumeGroupSnapshotContentName is the name of the bound VolumeGroupSnapshotContent. It is immutable once
	// set.
	BoundVolumeGroupSnapshotContentName *string `json:"boundVolumeGroupSnapshotContentName,omitempty"`
	// CreationTime is when the group was taken, as reported by its driver.
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// ReadyToUse is true if volumes can be restored from all snapshots of the group.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// Error is the last error while taking the group. The operation is retried.
	Error *VolumeSnapshotError `json:"error,omitempty"`
}
