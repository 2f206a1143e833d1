package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Buildbarn is a whole farm: a scheduler, storage, a frontend, workers and, if it has an image, a browser, with a
// configuration in which they know each other. An empty spec is a farm with one pool of workers.
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

// BuildbarnSpec is the desired state of a farm. The parts are objects named after the farm: NAME-scheduler,
// NAME-storage, NAME-frontend, NAME-browser, and NAME-worker-POOL.
type BuildbarnSpec struct {
	// Images are the images of the programs.
	Images Images `json:"images,omitempty"`
	// ImagePullPolicy of all images. Default IfNotPresent.
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets are the secrets with which images are pulled.
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Scheduler, Storage, Frontend and Browser configure these parts.
	Scheduler FarmScheduler `json:"scheduler,omitempty"`
	Storage   FarmStorage   `json:"storage,omitempty"`
	Frontend  FarmFrontend  `json:"frontend,omitempty"`
	Browser   FarmBrowser   `json:"browser,omitempty"`
	// Workers are pools of workers, 1 to 64, of different names. Default one named default.
	Workers []FarmWorkers `json:"workers,omitempty"`
	// Config is what the configuration files are rendered from.
	Config FarmConfig `json:"config,omitempty"`
	// TLS encrypts what the parts and their clients say to each other, and lets each part only in where it belongs.
	// Default none. An empty object is enough.
	TLS *FarmTLS `json:"tls,omitempty"`
}

// FarmTLS makes an authority for the farm in the Secret NAME-ca, certificates for its parts in PART-tls, and for its
// clients in NAME-client-tls, with a token for those that cannot use certificates.
type FarmTLS struct {
	// Clients says who may use the frontend: Authenticated (default), which are those with a certificate of the farm's
	// authority or with its token, or Anyone.
	Clients ClientPolicy `json:"clients,omitempty"`
	// Names are further DNS names and IP addresses under which clients reach the frontend, at most 32.
	//
	// +listType=set
	Names []string `json:"names,omitempty"`
	// LifetimeHours is how long certificates and tokens are valid, 1 to 8760. Default 720. They are renewed after two
	// thirds of it.
	LifetimeHours int32 `json:"lifetimeHours,omitempty"`
}

// ClientPolicy says which clients a frontend serves.
type ClientPolicy string

// The policies.
const (
	ClientsAuthenticated ClientPolicy = "Authenticated"
	ClientsAnyone        ClientPolicy = "Anyone"
)

// Images are the images of the programs of a farm.
type Images struct {
	// Scheduler, Worker and Storage are the images of bb_scheduler, bb_worker and bb_storage. Default
	// buildbarn/bb-scheduler:latest, buildbarn/bb-worker:latest and buildbarn/bb-storage:latest.
	Scheduler string `json:"scheduler,omitempty"`
	Worker    string `json:"worker,omitempty"`
	Storage   string `json:"storage,omitempty"`
	// Browser is the image of bb_browser. There is no browser without it.
	Browser string `json:"browser,omitempty"`
	// RunnerInstaller is the image that brings bb_runner. Default buildbarn/bb-runner-installer:latest.
	RunnerInstaller string `json:"runnerInstaller,omitempty"`
	// Runner is the image in which actions are executed, of pools that name none. Default busybox:1.36.
	Runner string `json:"runner,omitempty"`
	// VolumeInit is an image with a shell. Default busybox:1.36.
	VolumeInit string `json:"volumeInit,omitempty"`
}

// FarmScheduler configures the scheduler of a farm.
type FarmScheduler struct {
	// Resources are what the container requests and is limited to.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// IngressHost is the host of the Ingress. Default bb-scheduler.NAMESPACE.
	IngressHost string `json:"ingressHost,omitempty"`
}

// FarmStorage configures the storage of a farm.
type FarmStorage struct {
	// Shards is the number of parts that the cache is divided into, 1 to 500. Default 2.
	Shards *int32 `json:"shards,omitempty"`
	// Mirrored keeps each shard on two pods.
	Mirrored bool `json:"mirrored,omitempty"`
	// CASSize and ACSize are the sizes of each pod's claims, at least 128Mi and 16Mi. Default 33Gi and 1Gi.
	CASSize *resource.Quantity `json:"casSize,omitempty"`
	ACSize  *resource.Quantity `json:"acSize,omitempty"`
	// StorageClassName is of the claims. Default the cluster's.
	StorageClassName *string `json:"storageClassName,omitempty"`
	// ClaimPolicy is Retain (default) or Delete.
	ClaimPolicy ClaimPolicy `json:"claimPolicy,omitempty"`
	// Resources are what the container requests and is limited to.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// FarmFrontend configures the frontend of a farm.
type FarmFrontend struct {
	// Replicas is the number of pods. Default 1.
	Replicas *int32 `json:"replicas,omitempty"`
	// ServiceType is LoadBalancer (default), NodePort or ClusterIP.
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
	// Resources are what the container requests and is limited to.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// FarmBrowser configures the browser of a farm.
type FarmBrowser struct {
	// IngressHost is the host of the Ingress. Default bb-browser.NAMESPACE.
	IngressHost string `json:"ingressHost,omitempty"`
	// Resources are what the container requests and is limited to.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// FarmWorkers is a pool of workers of one platform.
type FarmWorkers struct {
	// Name of the pool.
	Name string `json:"name"`
	// InstanceNamePrefix of the actions that the pool executes. Default none: of all instances.
	InstanceNamePrefix string `json:"instanceNamePrefix,omitempty"`
	// Platform is what actions must ask for to be executed here, at most 32 properties. Default none.
	Platform []PlatformProperty `json:"platform,omitempty"`
	// RunnerImage is the image in which actions are executed. Default images.runner.
	RunnerImage string `json:"runnerImage,omitempty"`
	// Concurrency is how many actions a pod executes at once, 1 to 1000. Default 1.
	Concurrency int32 `json:"concurrency,omitempty"`
	// Replicas is the number of pods. Default 1, unless scale is set.
	Replicas *int32 `json:"replicas,omitempty"`
	// Scale makes the number of pods follow the queue.
	Scale *FarmScale `json:"scale,omitempty"`
	// DrainSeconds is how long a pod that goes may go on with its actions, 1 to 86400. Default 1800.
	DrainSeconds int32 `json:"drainSeconds,omitempty"`
	// Resources and RunnerResources are what the worker and the runner request and are limited to.
	Resources       corev1.ResourceRequirements `json:"resources,omitempty"`
	RunnerResources corev1.ResourceRequirements `json:"runnerResources,omitempty"`
	// NodeSelector are labels that the pods' nodes must have, Tolerations the pods'.
	NodeSelector map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations  []corev1.Toleration `json:"tolerations,omitempty"`
}

// FarmScale is a range of replicas of a pool.
type FarmScale struct {
	// Min is the least number of pods, 0 to max; Max the greatest, 1 to 1000.
	Min int32 `json:"min,omitempty"`
	Max int32 `json:"max"`
	// IdleSeconds is how long there must be less to do before pods are removed, 1 to 86400. Default 60.
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
	// IntervalSeconds is how often the queue is read, 1 to 600. Default 5.
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`
}

// FarmConfig is the configuration that the files of a farm are rendered from.
type FarmConfig struct {
	// MaximumMessageSizeBytes is of messages between the parts, 64 KiB to 256 MiB. Default 2 MiB.
	MaximumMessageSizeBytes int64 `json:"maximumMessageSizeBytes,omitempty"`
	// MaximumTreeSizeBytes is of the directory trees in results of actions, 1 MiB to 1 GiB. Default 64 MiB.
	MaximumTreeSizeBytes int64 `json:"maximumTreeSizeBytes,omitempty"`
	// BrowserURL is the address under which users reach the browser. Default: the address of its Ingress.
	BrowserURL string `json:"browserURL,omitempty"`
	// DefaultExecutionSeconds and MaximumExecutionSeconds limit the execution of an action, 1 to 86400. Default 1800
	// and 7200.
	DefaultExecutionSeconds int32 `json:"defaultExecutionSeconds,omitempty"`
	MaximumExecutionSeconds int32 `json:"maximumExecutionSeconds,omitempty"`
	// WorkerCacheBytes and WorkerCacheFiles bound the cache of input files of each worker. Default 1 GiB and 10000.
	WorkerCacheBytes int64 `json:"workerCacheBytes,omitempty"`
	WorkerCacheFiles int64 `json:"workerCacheFiles,omitempty"`
	// PersistSeconds is how often storage makes what was written survive its restart, 1 to 86400. Default 300.
	PersistSeconds int32 `json:"persistSeconds,omitempty"`
}

// BuildbarnStatus is the observed state of a farm.
type BuildbarnStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is Ready when all parts are.
	State State `json:"state,omitempty"`
	// Replicas is the number of pods of all parts, ReadyReplicas of those that are ready.
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
	// Parts is the state of each part.
	//
	// +listType=map
	// +listMapKey=name
	Parts []FarmPart `json:"parts,omitempty"`
	// Conditions are Ready, ConfigValid and, with TLS, CertificatesValid.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FarmPart is the state of a part of a farm.
type FarmPart struct {
	// Name and Kind of the object.
	Name string `json:"name"`
	Kind string `json:"kind"`
	// State, Replicas and ReadyReplicas are from its status.
	State         State `json:"state,omitempty"`
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
}

// BuildbarnList is a list of farms.
//
// +kubebuilder:object:root=true
type BuildbarnList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Buildbarn `json:"items"`
}
