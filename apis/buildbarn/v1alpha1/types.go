package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Part is one of the five kinds that run pods.
//
// +kubebuilder:object:generate=false
type Part interface {
	metav1.Object
	runtime.Object
	// Pods and Observed return pointers into the object.
	Pods() *PodSpec
	Observed() *PartStatus
	// Component is the name of the part in labels and files: scheduler, worker, storage, frontend or browser.
	Component() string
}

// PodSpec is what the specs of all parts have in common.
type PodSpec struct {
	// Image is the image of the part's program, such as buildbarn/bb-storage:latest. Its entry point takes one
	// argument, the path of the configuration.
	Image string `json:"image,omitempty"`
	// ImagePullPolicy of all images of the part. Default IfNotPresent.
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// Replicas is the number of pods, 0 to 1000. Default 1; of storage 2.
	Replicas *int32 `json:"replicas,omitempty"`
	// ConfigMapName is the ConfigMap with the configuration. Default buildbarn-config. Its pods mount a copy of the
	// files of this part, which is replaced, and the pods with it, when the files change and are valid.
	ConfigMapName string `json:"configMapName,omitempty"`
	// ImagePullSecrets are the secrets with which images are pulled.
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Resources are what the part's container requests and is limited to.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// NodeSelector are labels that the pods' nodes must have.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations of the pods.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// TLS gives the part's program a certificate. Default none.
	TLS *PartTLS `json:"tls,omitempty"`
}

// PartTLS gives the program of a part a certificate.
type PartTLS struct {
	// SecretName is a Secret with tls.crt, tls.key and ca.crt in PEM format, as cert-manager makes it. The program
	// finds the files in /tls, and its configuration says what they are for. A renewed certificate is there without a
	// restart; for another ca.crt pods are replaced, as programs read it when they start. The runner of a worker, and
	// so actions, cannot see the files: a worker with a certificate runs as root, and its runner as user 65534.
	SecretName string `json:"secretName"`
}

// State says how far a part is.
type State string

// The states.
const (
	// Ready: as many pods as wanted are ready, and all are of the present specification and configuration.
	Ready State = "Ready"
	// NotReady: there are pods to come, to become ready or to go.
	NotReady State = "NotReady"
	// NotFound: there is no Deployment or StatefulSet; the conditions say why.
	NotFound State = "NotFound"
)

// PartStatus is the observed state of a part.
type PartStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is Ready, NotReady or NotFound.
	State State `json:"state,omitempty"`
	// Replicas is the number of pods, ReadyReplicas of those that are ready.
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
	// Selector selects the pods, as text.
	Selector string `json:"selector,omitempty"`
	// ConfigHash is of the configuration that the pods get: the last valid one.
	ConfigHash string `json:"configHash,omitempty"`
	// Shards is the number of storage pods that the configuration was made for.
	Shards int32 `json:"shards,omitempty"`
	// Queue is what the scheduler was last seen to have for workers that follow it.
	Queue *QueueStatus `json:"queue,omitempty"`
	// Conditions are Ready, ConfigValid, ConfigFits, Progressing and, for those that have them, CertificatesValid,
	// IngressReady, ClaimsValid, Sharding and Scaling.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// QueueStatus is the part of the scheduler's queue that is for the workers of one object.
type QueueStatus struct {
	// Queued is how many actions wait, Executing how many are executed.
	Queued    int32 `json:"queued"`
	Executing int32 `json:"executing"`
	// Workers is how many workers' threads are connected.
	Workers int32 `json:"workers"`
	// DesiredReplicas is the number of pods asked for.
	DesiredReplicas int32 `json:"desiredReplicas"`
	// LowSince is since when fewer pods would do.
	LowSince *metav1.Time `json:"lowSince,omitempty"`
}

// The types of the conditions.
const (
	// ConditionReady is true in state Ready.
	ConditionReady = "Ready"
	// ConditionConfigValid is false while the ConfigMap is missing or not valid; the pods keep the last valid
	// configuration.
	ConditionConfigValid = "ConfigValid"
	// ConditionConfigFits is false while the configuration names what is not there, or what is something else: it may
	// be meant, and so pods get it. It says nothing before the part was ready once.
	ConditionConfigFits = "ConfigFits"
	// ConditionProgressing is false when pods cannot start, such as for an image that does not exist, and says why.
	ConditionProgressing = "Progressing"
	// ConditionIngressReady is false when another Ingress has the host.
	ConditionIngressReady = "IngressReady"
	// ConditionClaimsValid is false when the sizes asked for cannot be had.
	ConditionClaimsValid = "ClaimsValid"
	// ConditionSharding is false when the number of shards has changed and the cache is being filled anew.
	ConditionSharding = "Sharding"
	// ConditionScaling is false when the scheduler's queue cannot be read.
	ConditionScaling = "Scaling"
	// ConditionCertificates is false when the Secret with a part's certificate is missing or not valid, or a farm's
	// certificates cannot be issued.
	ConditionCertificates = "CertificatesValid"
	// ConditionChildren is false when a child's name is taken by an object that another owner controls.
	ConditionChildren = "ChildrenOwned"
)

// Names in labels, annotations and finalizers.
const (
	// LabelApp is the component, LabelPart the name of the part, on its children and pods.
	LabelApp  = "app"
	LabelPart = "component"
	// LabelInstance is the instance of workers.
	LabelInstance = "instance"
	// AnnotationConfig is the hash of the configuration, on pods and on copies of ConfigMaps.
	AnnotationConfig = "buildbarn.io/config-hash"
	// AnnotationAuthorities is the hash of the authorities that a program reads when it starts, on pods.
	AnnotationAuthorities = "buildbarn.io/authorities-hash"
	// AnnotationFields, on a ConfigMap, is FieldsUnchecked if its files are evaluated, but their fields not compared
	// with those that are known: they are for another version of Buildbarn.
	AnnotationFields = "buildbarn.io/fields"
	FieldsUnchecked  = "Unchecked"
	// AnnotationRetired is on the pods of workers that are about to go.
	AnnotationRetired = "buildbarn.io/retired"
	// Finalizer delays the deletion of a part until its workers are drained or its claims are deleted.
	Finalizer = "buildbarn.io/children"
	// DefaultConfigMap is the ConfigMap of a part that names none.
	DefaultConfigMap = "buildbarn-config"
	// DefaultInstance is the instance of workers that name none.
	DefaultInstance = "ubuntu22-04"
)

// Ports.
const (
	PortSchedulerClient int32 = 8982
	PortSchedulerWorker int32 = 8983
	PortSchedulerHTTP   int32 = 7982
	// PortSchedulerQueue is where rendered configurations serve the state of the queue over gRPC; services do not have
	// it.
	PortSchedulerQueue int32 = 8984
	PortStorage        int32 = 8981
	PortFrontend       int32 = 8980
	PortBrowser        int32 = 7984
	// PortMetrics is where rendered configurations serve metrics at /metrics; services do not have it.
	PortMetrics int32 = 9980
)
