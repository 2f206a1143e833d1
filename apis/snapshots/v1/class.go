package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VolumeSnapshotClass configures how a driver takes snapshots and what happens to them on deletion. The class with
// the annotation snapshot.storage.kubernetes.io/is-default-class: "true" is the default for its driver.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type VolumeSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Driver is the name of the CSI driver, or coracle.dev/local for local volumes of this cluster. Required.
	Driver string `json:"driver"`
	// Parameters are passed to the driver. Those that begin with csi.storage.k8s.io/ name Secrets for the driver.
	Parameters map[string]string `json:"parameters,omitempty"`
	// DeletionPolicy specifies what happens to a snapshot when its VolumeSnapshot is deleted: Delete or Retain.
	// Required.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy"`
}

// VolumeSnapshotClassList is a list of VolumeSnapshotClasses.
//
// +kubebuilder:object:root=true
type VolumeSnapshotClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeSnapshotClass `json:"items"`
}
