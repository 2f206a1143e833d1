package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VolumeGroupSnapshotClass configures how a driver takes groups of snapshots and what happens to them on deletion.
// It is immutable. The class with the annotation groupsnapshot.storage.kubernetes.io/is-default-class: "true" is
// the default for its driver.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type VolumeGroupSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Driver is the name of the CSI driver. Required.
	Driver string `json:"driver"`
	// Parameters are passed to the driver. Those that begin with csi.storage.k8s.io/ name Secrets for the driver.
	Parameters map[string]string `json:"parameters,omitempty"`
	// DeletionPolicy specifies what happens to a group when its VolumeGroupSnapshot is deleted: Delete or Retain.
	// Required.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy"`
}

// VolumeGroupSnapshotClassList is a list of VolumeGroupSnapshotClasses.
//
// +kubebuilder:object:root=true
type VolumeGroupSnapshotClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeGroupSnapshotClass `json:"items"`
}
