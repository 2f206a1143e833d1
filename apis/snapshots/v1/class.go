package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VolumeSnapshotClass says which driver takes snapshots, how, and what becomes
// of them. The class with the annotation
// snapshot.storage.kubernetes.io/is-default-class: "true" is the default of its
// driver.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type VolumeSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Driver is the name of the CSI driver, or coracle.dev/local for volumes of
	// this cluster's own. Required.
	Driver string `json:"driver"`
	// Parameters are for the driver. Those that begin with csi.storage.k8s.io/
	// name the Secrets that it gets.
	Parameters map[string]string `json:"parameters,omitempty"`
	// DeletionPolicy says what becomes of a snapshot when its VolumeSnapshot is
	// deleted: Delete or Retain. Required.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy"`
}

// VolumeSnapshotClassList is a list of classes.
//
// +kubebuilder:object:root=true
type VolumeSnapshotClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeSnapshotClass `json:"items"`
}
