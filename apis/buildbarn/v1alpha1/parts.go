package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BuildbarnScheduler is a Deployment of bb-scheduler with its Service and an Ingress for its web page.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type BuildbarnScheduler struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec BuildbarnSchedulerSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status PartStatus `json:"status,omitempty"`
}

// BuildbarnSchedulerSpec is the desired state of a BuildbarnScheduler.
type BuildbarnSchedulerSpec struct {
	PodSpec `json:",inline"`
	// ServiceType is ClusterIP (the default), NodePort or LoadBalancer.
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
	// IngressHost is the host of the Ingress. Defaults to bb-scheduler.NAMESPACE.
	IngressHost string `json:"ingressHost,omitempty"`
}

// BuildbarnSchedulerList is a list of BuildbarnSchedulers.
//
// +kubebuilder:object:root=true
type BuildbarnSchedulerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BuildbarnScheduler `json:"items"`
}

// BuildbarnWorker is a Deployment of bb-worker. Each pod has a runner that executes actions as an unprivileged
// user.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type BuildbarnWorker struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec BuildbarnWorkerSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status PartStatus `json:"status,omitempty"`
}

// BuildbarnWorkerSpec is the desired state of a BuildbarnWorker.
type BuildbarnWorkerSpec struct {
	PodSpec `json:",inline"`
	// RunnerImage is the image in which actions are executed. Defaults to busybox:1.36.
	RunnerImage string `json:"runnerImage,omitempty"`
	// RunnerInstallerImage is the image that copies bb_runner to /bb for the runner. Defaults to
	// upstream's, of the same version as the default worker.
	RunnerInstallerImage string `json:"runnerInstallerImage,omitempty"`
	// VolumeInitImage is an image with a shell that creates the worker's directories. Defaults to busybox:1.36.
	VolumeInitImage string `json:"volumeInitImage,omitempty"`
	// RunnerResources are the resource requests and limits of the runner, which executes the actions.
	RunnerResources corev1.ResourceRequirements `json:"runnerResources,omitempty"`
	// Instance is part of the names of the configuration files: worker-INSTANCE.jsonnet and
	// runner-INSTANCE.jsonnet. Defaults to ubuntu22-04.
	Instance string `json:"instance,omitempty"`
	// DrainSeconds is how long a pod that is being removed may finish its action, 1 to 86400. Defaults to 1800.
	DrainSeconds int32 `json:"drainSeconds,omitempty"`
	// Scale adapts the number of pods to the scheduler's queue. It replaces replicas.
	Scale *WorkerScale `json:"scale,omitempty"`
}

// WorkerScale is a range of replicas. Within it, the number of pods follows the queued and executing actions.
type WorkerScale struct {
	// Min is the minimum number of pods, 0 to max.
	Min int32 `json:"min,omitempty"`
	// Max is the maximum number of pods, 1 to 1000.
	Max int32 `json:"max"`
	// Scheduler is the BuildbarnScheduler in the same namespace whose queue is read, from the metrics on port 9980
	// of its pods. If these pods serve the state of the queue on port 8984 (buildQueueStateGrpcServers), idle
	// workers are removed before busy ones.
	Scheduler string `json:"scheduler"`
	// InstanceNamePrefix and Platform identify the queue, as in the worker's configuration.
	InstanceNamePrefix string             `json:"instanceNamePrefix,omitempty"`
	Platform           []PlatformProperty `json:"platform,omitempty"`
	// Concurrency is the number of actions that a pod executes at once, 1 to 1000. Defaults to 1.
	Concurrency int32 `json:"concurrency,omitempty"`
	// IdleSeconds is how long fewer pods must suffice before pods are removed, 1 to 86400. Defaults to 60.
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
	// IntervalSeconds is how often the queue is read, 1 to 600. Defaults to 5.
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`
}

// PlatformProperty is a property of an action's platform, as in the Remote Execution API.
type PlatformProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// BuildbarnWorkerList is a list of BuildbarnWorkers.
//
// +kubebuilder:object:root=true
type BuildbarnWorkerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BuildbarnWorker `json:"items"`
}

// BuildbarnStorage is a StatefulSet of bb-storage with a headless Service and claims. Its pods are the shards of
// the cache.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type BuildbarnStorage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec BuildbarnStorageSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status PartStatus `json:"status,omitempty"`
}

// BuildbarnStorageSpec is the desired state of a BuildbarnStorage.
type BuildbarnStorageSpec struct {
	PodSpec `json:",inline"`
	// VolumeInitImage is an image with a shell that creates the directories. Defaults to busybox:1.36.
	VolumeInitImage string `json:"volumeInitImage,omitempty"`
	// VolumeClaimTemplates replace the claims cas and ac. There must be a template with each of these names.
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`
	// CASSize and ACSize are the sizes of the claims of the content addressable storage and of the action cache.
	// They default to 33Gi and 1Gi.
	CASSize *resource.Quantity `json:"casSize,omitempty"`
	ACSize  *resource.Quantity `json:"acSize,omitempty"`
	// StorageClassName is the StorageClass of both claims. Defaults to the cluster's default class.
	StorageClassName *string `json:"storageClassName,omitempty"`
	// ClaimPolicy specifies what happens to the claims when the BuildbarnStorage is deleted: Retain (the default)
	// or Delete.
	ClaimPolicy ClaimPolicy `json:"claimPolicy,omitempty"`
	// Mirrored stores the same data on each pair of pods, 0 and 1, 2 and 3, so that one of them may be down, as
	// during an update. The number of replicas must then be even.
	Mirrored bool `json:"mirrored,omitempty"`
}

// ClaimPolicy specifies what happens to claims on deletion.
type ClaimPolicy string

// Claim policies.
const (
	ClaimsRetain ClaimPolicy = "Retain"
	ClaimsDelete ClaimPolicy = "Delete"
)

// BuildbarnStorageList is a list of BuildbarnStorages.
//
// +kubebuilder:object:root=true
type BuildbarnStorageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BuildbarnStorage `json:"items"`
}

// BuildbarnFrontend is a Deployment of bb-storage to which clients connect, with its Service.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type BuildbarnFrontend struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec BuildbarnFrontendSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status PartStatus `json:"status,omitempty"`
}

// BuildbarnFrontendSpec is the desired state of a BuildbarnFrontend.
type BuildbarnFrontendSpec struct {
	PodSpec `json:",inline"`
	// ServiceType is LoadBalancer (the default), NodePort or ClusterIP.
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
}

// BuildbarnFrontendList is a list of BuildbarnFrontends.
//
// +kubebuilder:object:root=true
type BuildbarnFrontendList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BuildbarnFrontend `json:"items"`
}

// BuildbarnBrowser is a Deployment of bb-browser, which shows actions and their results, with its Service and
// Ingress.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type BuildbarnBrowser struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec BuildbarnBrowserSpec `json:"spec,omitempty"`
	// Status is the observed state.
	Status PartStatus `json:"status,omitempty"`
}

// BuildbarnBrowserSpec is the desired state of a BuildbarnBrowser.
type BuildbarnBrowserSpec struct {
	PodSpec `json:",inline"`
	// ServiceType is ClusterIP (the default), NodePort or LoadBalancer.
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
	// Ingress specifies whether an Ingress is created. Defaults to true.
	Ingress *bool `json:"ingress,omitempty"`
	// IngressHost is the host of the Ingress. Defaults to bb-browser.NAMESPACE.
	IngressHost string `json:"ingressHost,omitempty"`
}

// BuildbarnBrowserList is a list of BuildbarnBrowsers.
//
// +kubebuilder:object:root=true
type BuildbarnBrowserList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BuildbarnBrowser `json:"items"`
}

// Methods of Part.

func (s *BuildbarnScheduler) Pods() *PodSpec { return &s.Spec.PodSpec }
func (w *BuildbarnWorker) Pods() *PodSpec    { return &w.Spec.PodSpec }
func (s *BuildbarnStorage) Pods() *PodSpec   { return &s.Spec.PodSpec }
func (f *BuildbarnFrontend) Pods() *PodSpec  { return &f.Spec.PodSpec }
func (b *BuildbarnBrowser) Pods() *PodSpec   { return &b.Spec.PodSpec }

func (s *BuildbarnScheduler) Observed() *PartStatus { return &s.Status }
func (w *BuildbarnWorker) Observed() *PartStatus    { return &w.Status }
func (s *BuildbarnStorage) Observed() *PartStatus   { return &s.Status }
func (f *BuildbarnFrontend) Observed() *PartStatus  { return &f.Status }
func (b *BuildbarnBrowser) Observed() *PartStatus   { return &b.Status }

func (s *BuildbarnScheduler) Component() string { return "scheduler" }
func (w *BuildbarnWorker) Component() string    { return "worker" }
func (s *BuildbarnStorage) Component() string   { return "storage" }
func (f *BuildbarnFrontend) Component() string  { return "frontend" }
func (b *BuildbarnBrowser) Component() string   { return "browser" }

var (
	_ Part = (*BuildbarnScheduler)(nil)
	_ Part = (*BuildbarnWorker)(nil)
	_ Part = (*BuildbarnStorage)(nil)
	_ Part = (*BuildbarnFrontend)(nil)
	_ Part = (*BuildbarnBrowser)(nil)
)
