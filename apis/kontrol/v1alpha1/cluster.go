package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cluster is a cluster to which Resources are applied: any Kubernetes cluster, or the one that serves this API.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec ClusterSpec `json:"spec"`
	// Status is the observed state.
	Status ClusterStatus `json:"status,omitempty"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cluster `json:"items"`
}

// ClusterSpec specifies how to reach a cluster. Exactly one of local, pull and kubeconfigSecret must be set.
type ClusterSpec struct {
	// Local refers to the cluster that serves this API.
	Local bool `json:"local,omitempty"`
	// Pull refers to a cluster that connects itself: `coracle agent kontrol` runs in it and keeps one connection
	// open, over which it is reached.
	Pull bool `json:"pull,omitempty"`
	// KubeconfigSecret refers to a Secret with a kubeconfig for the cluster. The kubeconfig must contain
	// credentials and certificate authorities inline: commands, authentication plugins and references to files are
	// rejected.
	KubeconfigSecret *SecretReference `json:"kubeconfigSecret,omitempty"`
	// Suspend stops applying to the cluster while it is true. The current state is still recorded.
	Suspend bool `json:"suspend,omitempty"`
}

// SecretReference refers to a key of a Secret.
type SecretReference struct {
	// Namespace is the namespace of the Secret. Required.
	Namespace string `json:"namespace"`
	// Name is the name of the Secret. Required.
	Name string `json:"name"`
	// Key is the key in the Secret's data. Defaults to kubeconfig.
	Key string `json:"key,omitempty"`
}

// ClusterStatus is the observed state of a Cluster.
type ClusterStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Server is the address of the API server.
	Server string `json:"server,omitempty"`
	// Version is the version of the API server, such as v1.37.0.
	Version string `json:"version,omitempty"`
	// LastSeen is when the API server last responded, accurate to 5 minutes while it is ready.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// Conditions has the condition Ready, with the reason Connected, Connecting, SecretMissing, KubeconfigInvalid,
	// Unauthorized, CertificateInvalid, Unreachable or InvalidAnswer.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionReady is the condition that is true while a cluster's API server responds.
const ConditionReady = "Ready"

// Reasons of a cluster's condition Ready.
const (
	ReasonConnected          = "Connected"
	ReasonConnecting         = "Connecting"
	ReasonSecretMissing      = "SecretMissing"
	ReasonKubeconfigInvalid  = "KubeconfigInvalid"
	ReasonUnauthorized       = "Unauthorized"
	ReasonCertificateInvalid = "CertificateInvalid"
	ReasonUnreachable        = "Unreachable"
	ReasonInvalidAnswer      = "InvalidAnswer"
)
