package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VolumeGroupSnapshot asks for snapshots of the volumes of several claims at
// one point in time, or for such a group that exists already.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type VolumeGroupSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec VolumeGroupSnapshotSpec `json:"spec"`
	// Status is the observed state. Before the group is used, check that it and
	// its VolumeGroupSnapshotContent name each other.
	Status *VolumeGroupSnapshotStatus `json:"status,omitempty"`
}

// VolumeGroupSnapshotList is a list of groups.
//
// +kubebuilder:object:root=true
type VolumeGroupSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeGroupSnapshot `json:"items"`
}

// VolumeGroupSnapshotSpec says of what there is to be a group of snapshots.
type VolumeGroupSnapshotSpec struct {
	// Source is what the group is made from. It cannot be changed. Required.
	Source VolumeGroupSnapshotSource `json:"source"`
	// VolumeGroupSnapshotClassName is the name of the VolumeGroupSnapshotClass.
	// Without it, the default class of the driver of the claims' volumes is
	// used.
	VolumeGroupSnapshotClassName *string `json:"volumeGroupSnapshotClassName,omitempty"`
}

// VolumeGroupSnapshotSource is what a group is made from. Exactly one field is
// set, and cannot be changed.
type VolumeGroupSnapshotSource struct {
	// Selector selects, by their labels, the claims in the group's namespace of
	// whose volumes snapshots are taken. Which they are is decided once: labels
	// that change after the VolumeGroupSnapshotContent was created change
	// nothing.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// VolumeGroupSnapshotContentName is the name of the
	// VolumeGroupSnapshotContent of a group that exists already.
	VolumeGroupSnapshotContentName *string `json:"volumeGroupSnapshotContentName,omitempty"`
}

// VolumeGroupSnapshotStatus is what is known of a group.
type VolumeGroupSnapshotStatus struct {
	// BoundVolumeGroupSnapshotContentName is the name of the
	// VolumeGroupSnapshotContent. It cannot be changed once it is set.
	BoundVolumeGroupSnapshotContentName *string `json:"boundVolumeGroupSnapshotContentName,omitempty"`
	// CreationTime is when the group was taken, as its driver says.
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// ReadyToUse says whether volumes can be made from all snapshots of the
	// group.
	ReadyToUse *bool `json:"readyToUse,omitempty"`
	// Error is the last error, if the group could not be taken. It is tried
	// again.
	Error *VolumeSnapshotError `json:"error,omitempty"`
}
