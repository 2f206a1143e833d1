package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Part is implemented by the five kinds that run pods.
//
// +kubebuilder:object:generate=false
type Part interface {
	metav1.Object
	runtime.Object
	// Pods and Observed return pointers to fields of the object.
	Pods() *PodSpec
	Observed() *PartStatus
	// Component returns the name of the part in labels and files: scheduler, worker, storage, frontend or browser.
	Component() string
}

// PodSpec has the fields that all parts share.
type PodSpec struct {
	// Image is the image of the part's program, such as ghcr.io/buildbarn/bb-storage:TAG. Its entrypoint takes the path
	// of the configuration as its only argument.
	Image string `json:"image,omitempty"`
	// ImagePullPolicy is the pull policy of all images of the part. Defaults to IfNotPresent.
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// Replicas is the number of pods, 0 to 1000. Defaults to 1, for storage to 2.
	Replicas *int32 `json:"replicas,omitempty"`
	// ConfigMapName is the ConfigMap with the configuration. The pods mount a copy of this part's files. When the
	// files change and are valid, the copy and the pods are replaced. Defaults to buildbarn-config.
	ConfigMapName string `json:"configMapName,omitempty"`
	// ImagePullSecrets are Secrets with credentials for pulling images.
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Resources are the resource requests and limits of the part's container.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// NodeSelector are labels that the nodes must have.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations are the tolerations of the pods.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// TLS provides a certificate to the part's program. Defaults to none.
	TLS *PartTLS `json:"tls,omitempty"`
}

// PartTLS provides a certificate to the program of a part.
type PartTLS struct {
	// SecretName is a Secret with tls.crt, tls.key and ca.crt in PEM format, as cert-manager makes it. The program
	// finds the files in /tls, and its configuration says what they are for. A renewed certificate is there without a
	// restart; for another ca.crt pods are replaced, as programs read it when they start. The runner of a worker, and
	// so actions, cannot see the files: a worker with a certificate runs as root, and its runner as user 65534.
	SecretName string `json:"secretName"`
}

// State is the state of a part.
type State string

// States of a part or farm.
const (
	// Ready means that all desired pods are ready and have the current spec and configuration.
	Ready State = "Ready"
	// NotReady means that pods are being created, not ready yet, or being removed.
	NotReady State = "NotReady"
	// NotFound means that the part's Deployment or StatefulSet does not exist. The conditions describe the reason.
	NotFound State = "NotFound"
)

// PartStatus is the observed state of a part.
type PartStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is Ready, NotReady or NotFound.
	State State `json:"state,omitempty"`
	// Replicas is the number of pods, and ReadyReplicas the number of ready pods.
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
	// Selector is the label selector of the pods.
	Selector string `json:"selector,omitempty"`
	// ConfigHash is the hash of the pods' configuration, which is the last valid one.
	ConfigHash string `json:"configHash,omitempty"`
	// Shards is the number of storage pods in the configuration.
	Shards int32 `json:"shards,omitempty"`
	// Queue is the last observed state of the scheduler's queue, for workers with scale.
	Queue *QueueStatus `json:"queue,omitempty"`
	// Conditions has the conditions Ready, ConfigValid, ConfigFits and Progressing and, where they apply,
	// CertificatesValid, IngressReady, ClaimsValid, Sharding and Scaling.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// QueueStatus is the state of the scheduler's queue for one BuildbarnWorker.
type QueueStatus struct {
	// Queued is the number of waiting actions, Executing the number of executing actions.
	Queued    int32 `json:"queued"`
	Executing int32 `json:"executing"`
	// Workers is the number of connected worker threads.
	Workers int32 `json:"workers"`
	// DesiredReplicas is the target number of pods.
	DesiredReplicas int32 `json:"desiredReplicas"`
	// LowSince is the time since which fewer pods would suffice.
	LowSince *metav1.Time `json:"lowSince,omitempty"`
}

// Condition types.
const (
	// ConditionReady is true in state Ready.
	ConditionReady = "Ready"
	// ConditionConfigValid is false while the ConfigMap is missing or invalid. The pods keep the last valid
	// configuration.
	ConditionConfigValid = "ConfigValid"
	// ConditionConfigFits is false while the configuration refers to objects that do not exist or are of another
	// kind. This may be intended, so pods get the configuration anyway. It is not set before the part was ready for
	// the first time.
	ConditionConfigFits = "ConfigFits"
	// ConditionProgressing is false if pods cannot start, for example because an image does not exist. Its message
	// describes the reason.
	ConditionProgressing = "Progressing"
	// ConditionIngressReady is false if another Ingress has the same host.
	ConditionIngressReady = "IngressReady"
	// ConditionClaimsValid is false if the claims cannot have the requested sizes.
	ConditionClaimsValid = "ClaimsValid"
	// ConditionSharding is false after the number of shards changed, while the cache is being refilled.
	ConditionSharding = "Sharding"
	// ConditionScaling is false if the scheduler's queue cannot be read.
	ConditionScaling = "Scaling"
	// ConditionCertificates is false if the Secret with a part's certificate is missing or invalid, or if a farm's
	// certificates cannot be issued.
	ConditionCertificates = "CertificatesValid"
	// ConditionChildren is false if another owner controls an object with a child's name.
	ConditionChildren = "ChildrenOwned"
)

// Labels, annotations, finalizers and default names.
const (
	// LabelApp has the component and LabelPart the name of the part, on its children and pods.
	LabelApp  = "app"
	LabelPart = "component"
	// LabelInstance has the instance of workers.
	LabelInstance = "instance"
	// AnnotationConfig has the hash of the configuration, on pods and copies of ConfigMaps.
	AnnotationConfig = "buildbarn.io/config-hash"
	// AnnotationAuthorities has the hash of the CAs that a program reads at its start, on pods.
	AnnotationAuthorities = "buildbarn.io/authorities-hash"
	// AnnotationFields on a ConfigMap is FieldsUnchecked if its files are for another version of Buildbarn. They
	// are then evaluated, but their fields are not checked.
	AnnotationFields = "buildbarn.io/fields"
	FieldsUnchecked  = "Unchecked"
	// AnnotationRetired is on pods of workers that are about to be removed.
	AnnotationRetired = "buildbarn.io/retired"
	// Finalizer delays the deletion of a part until its workers are drained or its claims deleted.
	Finalizer = "buildbarn.io/children"
	// DefaultConfigMap is the default of configMapName.
	DefaultConfigMap = "buildbarn-config"
	// DefaultInstance is the default instance of workers.
	DefaultInstance = "ubuntu22-04"
)

// Ports of the parts.
const (
	PortSchedulerClient int32 = 8982
	PortSchedulerWorker int32 = 8983
	PortSchedulerHTTP   int32 = 7982
	// PortSchedulerQueue is where generated configurations serve the state of the queue over gRPC. It is not in the
	// Service.
	PortSchedulerQueue int32 = 8984
	PortStorage        int32 = 8981
	PortFrontend       int32 = 8980
	PortBrowser        int32 = 7984
	// PortMetrics is where generated configurations serve metrics at /metrics. It is not in any Service.
	PortMetrics int32 = 9980
)
