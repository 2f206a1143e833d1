package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cluster is a cluster that Resources are applied to: any Kubernetes, or the
// one that serves this API.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says how to reach it.
	Spec ClusterSpec `json:"spec"`
	// Status says whether it answers.
	Status ClusterStatus `json:"status,omitempty"`
}

// ClusterList is a list of clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cluster `json:"items"`
}

// ClusterSpec says how to reach a cluster. Exactly one of local, pull and
// kubeconfigSecret is set.
type ClusterSpec struct {
	// Local is the cluster that serves this API.
	Local bool `json:"local,omitempty"`
	// Pull is a cluster that connects itself: `coracle agent kontrol` runs there
	// and opens one connection, through which it is reached.
	Pull bool `json:"pull,omitempty"`
	// KubeconfigSecret has a kubeconfig for the cluster. Commands,
	// authentication plugins and references to files are refused in it:
	// credentials and authorities are inline.
	KubeconfigSecret *SecretReference `json:"kubeconfigSecret,omitempty"`
	// Suspend applies nothing to the cluster while it is true. What is there is
	// still recorded.
	Suspend bool `json:"suspend,omitempty"`
}

// SecretReference names a key of a Secret.
type SecretReference struct {
	// Namespace of the Secret. Required.
	Namespace string `json:"namespace"`
	// Name of the Secret. Required.
	Name string `json:"name"`
	// Key in the Secret's data. Default kubeconfig.
	Key string `json:"key,omitempty"`
}

// ClusterStatus says whether a cluster answers.
type ClusterStatus struct {
	// ObservedGeneration is the generation that the status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Server is the address of its API server.
	Server string `json:"server,omitempty"`
	// Version is the version of its API server, such as v1.37.0.
	Version string `json:"version,omitempty"`
	// LastSeen is when it answered last, to 5 minutes while it is ready.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// Conditions has the condition Ready, with the reason Connected,
	// Connecting, SecretMissing, KubeconfigInvalid, Unauthorized,
	// CertificateInvalid, Unreachable or InvalidAnswer if it is not.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionReady says whether a cluster answers.
const ConditionReady = "Ready"

// The reasons of a cluster's condition Ready.
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
