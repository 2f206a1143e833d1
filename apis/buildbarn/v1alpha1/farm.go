package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Buildbarn is a whole farm: a scheduler, storage, a frontend, workers and, if it has an image, a browser, with a
// configuration that connects them. An empty spec is a farm with one pool of workers.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Buildbarn struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec BuildbarnSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status BuildbarnStatus `json:"status,omitempty"`
}

// BuildbarnSpec is the desired state of a farm. Its parts are objects named after the farm: NAME-scheduler,
// NAME-storage, NAME-frontend, NAME-browser and NAME-worker-POOL.
type BuildbarnSpec struct {
	// Images are the images of the programs.
	Images Images `json:"images,omitempty"`
	// ImagePullPolicy is the pull policy of all images. Defaults to IfNotPresent.
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets are Secrets with credentials for pulling images.
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Scheduler, Storage, Frontend and Browser configure the respective parts.
	Scheduler FarmScheduler `json:"scheduler,omitempty"`
	Storage   FarmStorage   `json:"storage,omitempty"`
	Frontend  FarmFrontend  `json:"frontend,omitempty"`
	Browser   FarmBrowser   `json:"browser,omitempty"`
	// Workers are 1 to 64 pools of workers with different names. Defaults to one pool named default.
	Workers []FarmWorkers `json:"workers,omitempty"`
	// Config has values for the generated configuration files.
	Config FarmConfig `json:"config,omitempty"`
	// TLS encrypts connections between the parts and with clients, and restricts each part to the connections that
	// it needs. If it is not set, connections are not encrypted. An empty object enables it.
	TLS *FarmTLS `json:"tls,omitempty"`
}

// FarmTLS configures TLS of a farm. The farm's CA is in the Secret NAME-ca, certificates of the parts are in
// PART-tls, and a client certificate and a token for clients without certificates are in NAME-client-tls.
type FarmTLS struct {
	// Clients specifies who may use the frontend: Authenticated (the default), clients with a certificate of the
	// farm's CA or with its token, or Anyone.
	Clients ClientPolicy `json:"clients,omitempty"`
	// Names are additional DNS names and IP addresses under which clients reach the frontend, at most 32.
	//
	// +listType=set
	Names []string `json:"names,omitempty"`
	// LifetimeHours is the lifetime of certificates and tokens, 1 to 8760. They are renewed after two thirds of it.
	// Defaults to 720.
	LifetimeHours int32 `json:"lifetimeHours,omitempty"`
}

// ClientPolicy specifies which clients a frontend serves.
type ClientPolicy string

// Client policies.
const (
	ClientsAuthenticated ClientPolicy = "Authenticated"
	ClientsAnyone        ClientPolicy = "Anyone"
)

// Images are the images of the programs of a farm.
type Images struct {
	// Scheduler, Worker and Storage are the images of bb_scheduler, bb_worker and bb_storage. They default to
	// upstream's in ghcr.io/buildbarn, of versions that belong together.
	Scheduler string `json:"scheduler,omitempty"`
	Worker    string `json:"worker,omitempty"`
	Storage   string `json:"storage,omitempty"`
	// Browser is the image of bb_browser. If it is empty, the farm has no browser.
	Browser string `json:"browser,omitempty"`
	// RunnerInstaller is the image that provides bb_runner. Defaults to upstream's.
	RunnerInstaller string `json:"runnerInstaller,omitempty"`
	// Runner is the image in which actions are executed, for pools without runnerImage. Defaults to busybox:1.36.
	Runner string `json:"runner,omitempty"`
	// VolumeInit is an image with a shell that prepares volumes. Defaults to busybox:1.36.
	VolumeInit string `json:"volumeInit,omitempty"`
}

// FarmScheduler configures the scheduler of a farm.
type FarmScheduler struct {
	// Resources are the container's resource requests and limits.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// IngressHost is the host of the Ingress. Defaults to bb-scheduler.NAMESPACE.
	IngressHost string `json:"ingressHost,omitempty"`
}

// FarmStorage configures the storage of a farm.
type FarmStorage struct {
	// Shards is the number of shards of the cache, 1 to 500. Defaults to 2.
	Shards *int32 `json:"shards,omitempty"`
	// Mirrored stores each shard on two pods.
	Mirrored bool `json:"mirrored,omitempty"`
	// CASSize and ACSize are the sizes of each pod's claims, at least 128Mi and 16Mi. They default to 33Gi and 1Gi.
	CASSize *resource.Quantity `json:"casSize,omitempty"`
	ACSize  *resource.Quantity `json:"acSize,omitempty"`
	// StorageClassName is the StorageClass of the claims. Defaults to the cluster's default class.
	StorageClassName *string `json:"storageClassName,omitempty"`
	// ClaimPolicy is Retain (the default) or Delete.
	ClaimPolicy ClaimPolicy `json:"claimPolicy,omitempty"`
	// Resources are the container's resource requests and limits.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// FarmFrontend configures the frontend of a farm.
type FarmFrontend struct {
	// Replicas is the number of pods. Defaults to 1.
	Replicas *int32 `json:"replicas,omitempty"`
	// ServiceType is LoadBalancer (the default), NodePort or ClusterIP.
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
	// Resources are the container's resource requests and limits.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// FarmBrowser configures the browser of a farm, which has one if images.browser is set.
type FarmBrowser struct {
	// IngressHost is the host of the Ingress. Defaults to bb-browser.NAMESPACE.
	IngressHost string `json:"ingressHost,omitempty"`
	// Resources are the container's resource requests and limits.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// FarmWorkers is a pool of workers for one platform.
type FarmWorkers struct {
	// Name is the name of the pool.
	Name string `json:"name"`
	// InstanceNamePrefix is the prefix of the instance names of actions that the pool executes. If empty, it
	// executes actions of all instances.
	InstanceNamePrefix string `json:"instanceNamePrefix,omitempty"`
	// Platform has the properties that actions must request to be executed in this pool, at most 32. Defaults to
	// none.
	Platform []PlatformProperty `json:"platform,omitempty"`
	// RunnerImage is the image in which actions are executed. Defaults to images.runner.
	RunnerImage string `json:"runnerImage,omitempty"`
	// Concurrency is the number of actions that a pod executes at once, 1 to 1000. Defaults to 1.
	Concurrency int32 `json:"concurrency,omitempty"`
	// Replicas is the number of pods. Defaults to 1 unless scale is set.
	Replicas *int32 `json:"replicas,omitempty"`
	// Scale adapts the number of pods to the queue.
	Scale *FarmScale `json:"scale,omitempty"`
	// DrainSeconds is how long a pod that is being removed may finish its actions, 1 to 86400. Defaults to 1800.
	DrainSeconds int32 `json:"drainSeconds,omitempty"`
	// Resources and RunnerResources are the resource requests and limits of the worker and of the runner.
	Resources       corev1.ResourceRequirements `json:"resources,omitempty"`
	RunnerResources corev1.ResourceRequirements `json:"runnerResources,omitempty"`
	// NodeSelector are labels that the nodes must have. Tolerations are the tolerations of the pods.
	NodeSelector map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations  []corev1.Toleration `json:"tolerations,omitempty"`
}

// FarmScale is a range of replicas of a pool.
type FarmScale struct {
	// Min is the minimum number of pods, 0 to max. Max is the maximum, 1 to 1000.
	Min int32 `json:"min,omitempty"`
	Max int32 `json:"max"`
	// IdleSeconds is how long fewer pods must suffice before pods are removed, 1 to 86400. Defaults to 60.
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
	// IntervalSeconds is how often the queue is read, 1 to 600. Defaults to 5.
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`
}

// FarmConfig has values for the generated configuration files of a farm.
type FarmConfig struct {
	// MaximumMessageSizeBytes is the maximum size of messages between the parts, 64 KiB to 256 MiB. Defaults to 2
	// MiB.
	MaximumMessageSizeBytes int64 `json:"maximumMessageSizeBytes,omitempty"`
	// MaximumTreeSizeBytes is the maximum size of directory trees in results of actions, 1 MiB to 1 GiB. Defaults
	// to 64 MiB.
	MaximumTreeSizeBytes int64 `json:"maximumTreeSizeBytes,omitempty"`
	// BrowserURL is the URL of the browser for users. Defaults to the address of its Ingress.
	BrowserURL string `json:"browserURL,omitempty"`
	// DefaultExecutionSeconds and MaximumExecutionSeconds are the default and maximum timeout of an action, 1 to
	// 86400. They default to 1800 and 7200.
	DefaultExecutionSeconds int32 `json:"defaultExecutionSeconds,omitempty"`
	MaximumExecutionSeconds int32 `json:"maximumExecutionSeconds,omitempty"`
	// WorkerCacheBytes and WorkerCacheFiles are the maximum size and number of files of each worker's input cache.
	// They default to 1 GiB and 10000.
	WorkerCacheBytes int64 `json:"workerCacheBytes,omitempty"`
	WorkerCacheFiles int64 `json:"workerCacheFiles,omitempty"`
	// PersistSeconds is how often storage persists its state, so that written data survives a restart, 1 to 86400.
	// Defaults to 300.
	PersistSeconds int32 `json:"persistSeconds,omitempty"`
}

// BuildbarnStatus is the observed state of a farm.
type BuildbarnStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is Ready if all parts are.
	State State `json:"state,omitempty"`
	// Replicas is the number of pods of all parts, and ReadyReplicas the number of ready pods.
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
	// Parts are the states of the parts.
	//
	// +listType=map
	// +listMapKey=name
	Parts []FarmPart `json:"parts,omitempty"`
	// Conditions has the conditions Ready, ConfigValid and, with TLS, CertificatesValid.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FarmPart is the state of a part of a farm.
type FarmPart struct {
	// Name and Kind identify the object of the part.
	Name string `json:"name"`
	Kind string `json:"kind"`
	// State, Replicas and ReadyReplicas are copied from the status of the part.
	State         State `json:"state,omitempty"`
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
}

// BuildbarnList is a list of Buildbarns.
//
// +kubebuilder:object:root=true
type BuildbarnList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Buildbarn `json:"items"`
}
