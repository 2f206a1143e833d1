package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Bundle is many objects that one or more clusters should have, brought there
// cluster by cluster and wave by wave. It makes a Resource for each object and
// cluster, and owns them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
type Bundle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is where the objects are, and how they are brought to which clusters.
	Spec BundleSpec `json:"spec"`
	// Status says how far that is.
	Status BundleStatus `json:"status,omitempty"`
}

// BundleList is a list of bundles.
//
// +kubebuilder:object:root=true
type BundleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Bundle `json:"items"`
}

// BundleSpec says where objects are, and how they are brought to which
// clusters.
type BundleSpec struct {
	// Source is where the objects are.
	Source BundleSource `json:"source"`
	// ClusterName names the one cluster that should have them. Exactly one of
	// clusterName and clusterSelector is set.
	ClusterName string `json:"clusterName,omitempty"`
	// ClusterSelector selects clusters by their labels; {} selects all.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Overrides change some of the objects on some clusters, at most 32, in this
	// order.
	Overrides []BundleOverride `json:"overrides,omitempty"`
	// Mode, Ignore and DeletionPolicy are copied to the Bundle's Resources.
	Mode           Mode           `json:"mode,omitempty"`
	Ignore         *Ignore        `json:"ignore,omitempty"`
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// Rollout says in which order and how fast.
	Rollout Rollout `json:"rollout,omitempty"`
	// Windows are times, at most 16, in which the objects are, or are not,
	// brought to clusters, applied and corrected.
	Windows []SyncWindow `json:"windows,omitempty"`
}

// BundleSource is where objects are. Exactly one field is set. Objects are YAML
// or JSON documents: at most 500, of 262144 bytes each. The annotation
// kontrol/wave of an object is its wave, an integer from -1000 to 1000; 0
// without.
type BundleSource struct {
	// Inline are documents, at most 524288 bytes.
	Inline string `json:"inline,omitempty"`
	// ConfigMap has documents in its values, in the order of their keys.
	ConfigMap *ConfigMapReference `json:"configMap,omitempty"`
	// Artifact is an OCI artifact whose layers are documents (media types that
	// end in yaml or json) or archives of files (tar and tar+gzip), of which
	// files that end in .yaml, .yml or .json are read.
	Artifact *Artifact `json:"artifact,omitempty"`
}

// ConfigMapReference names a ConfigMap.
type ConfigMapReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Artifact is an OCI artifact in a registry.
type Artifact struct {
	// Reference is HOST/PATH:TAG, which is looked up again now and then, or
	// HOST/PATH@sha256:DIGEST, which never changes.
	Reference string `json:"reference"`
	// Path is a directory in the artifact's archives; only files in it are read.
	Path string `json:"path,omitempty"`
	// PullSecret has credentials, under the key .dockerconfigjson.
	PullSecret *SecretReference `json:"pullSecret,omitempty"`
	// Interval is how often a tag is looked up again: 10 seconds or more, 5
	// minutes by default.
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// BundleOverride is an Override of some of a Bundle's objects.
type BundleOverride struct {
	// Kind, Namespace and Name select objects; one that is empty selects any.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`

	Override `json:",inline"`
}

// FailurePolicy is what becomes of a rollout when a cluster fails.
type FailurePolicy string

const (
	// FailureStop: nothing more is changed on any cluster until it has recovered,
	// or the content changes.
	FailureStop FailurePolicy = "Stop"
	// FailureContinue: other clusters go on, within maxUnavailable.
	FailureContinue FailurePolicy = "Continue"
)

// Approval says who decides that something is applied.
type Approval string

const (
	// ApprovalNone: it is applied as soon as it can be.
	ApprovalNone Approval = "None"
	// ApprovalManual: it is applied after a user approves it.
	ApprovalManual Approval = "Manual"
)

// Rollout says in which order and how fast content is brought to clusters. On
// each cluster a wave begins once all objects of the waves before are in sync
// and healthy there.
type Rollout struct {
	// Order are selectors of clusters, at most 16: those that the first selects
	// come first, those that none selects last, and by name among each other.
	Order []metav1.LabelSelector `json:"order,omitempty"`
	// MaxUnavailable is how many clusters, as a number or a percentage (rounded
	// down, but at least 1), may be under way or not healthy at a time. Default 1.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// HealthTimeout is how long a wave may take on a cluster until the cluster
	// has failed: from 1 second to 24 hours, 5 minutes by default.
	HealthTimeout *metav1.Duration `json:"healthTimeout,omitempty"`
	// OnFailure is Stop (the default) or Continue.
	OnFailure FailurePolicy `json:"onFailure,omitempty"`
	// Paused changes nothing while it is true.
	Paused bool `json:"paused,omitempty"`
	// Approval is None (the default), or Manual: each new content waits until
	// `coracle kontrol approve bundle/NAME` has approved it.
	Approval Approval `json:"approval,omitempty"`
}

// BundlePhase says how far a Bundle is.
type BundlePhase string

const (
	// BundleSynced: all clusters have it, and are healthy.
	BundleSynced BundlePhase = "Synced"
	// BundleProgressing: clusters are under way.
	BundleProgressing BundlePhase = "Progressing"
	// BundleWaiting: it waits for clusters, or for approval.
	BundleWaiting BundlePhase = "Waiting"
	// BundlePaused: spec.rollout.paused is true.
	BundlePaused BundlePhase = "Paused"
	// BundleFailed: a cluster has failed.
	BundleFailed BundlePhase = "Failed"
	// BundleInvalid: the content cannot be read. What clusters have stays.
	BundleInvalid BundlePhase = "Invalid"
)

// BundleStatus says how far a Bundle is.
type BundleStatus struct {
	// ObservedGeneration is the generation that the status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase and Message say how far it is, what is wrong, and what to do.
	Phase   BundlePhase `json:"phase,omitempty"`
	Message string      `json:"message,omitempty"`
	// Content identifies the objects with their overrides, and Objects is their
	// number.
	Content string `json:"content,omitempty"`
	Objects int32  `json:"objects,omitempty"`
	// Artifact is the digest of the artifact that the content is from.
	Artifact string `json:"artifact,omitempty"`
	// Approved is the content that was approved last.
	Approved string `json:"approved,omitempty"`
	// Clusters counts the clusters.
	Clusters BundleCounts `json:"clusters,omitempty"`
	// Waves says for each wave how far it is, at most 64.
	Waves []BundleWave `json:"waves,omitempty"`
	// Targets are the clusters in the order of the rollout, at most 500.
	Targets []BundleTarget `json:"targets,omitempty"`
	// Conditions has the conditions Ready and ContentReady.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BundleCounts counts clusters.
type BundleCounts struct {
	// Total is how many clusters should have the content.
	Total       int32 `json:"total"`
	Synced      int32 `json:"synced,omitempty"`
	Progressing int32 `json:"progressing,omitempty"`
	Waiting     int32 `json:"waiting,omitempty"`
	Failed      int32 `json:"failed,omitempty"`
}

// BundleWave says how far a wave is.
type BundleWave struct {
	// Wave is its number, Objects how many objects it has.
	Wave    int32 `json:"wave"`
	Objects int32 `json:"objects"`
	// Clusters is how many clusters have all of them in sync and healthy.
	Clusters int32 `json:"clusters"`
}

// TargetPhase says how far a cluster is.
type TargetPhase string

const (
	TargetSynced      TargetPhase = "Synced"
	TargetProgressing TargetPhase = "Progressing"
	TargetWaiting     TargetPhase = "Waiting"
	TargetFailed      TargetPhase = "Failed"
)

// BundleTarget says how far a cluster is.
type BundleTarget struct {
	// Name is the cluster's.
	Name string `json:"name"`
	// Phase and Message say how far it is, and what is wrong.
	Phase   TargetPhase `json:"phase"`
	Message string      `json:"message,omitempty"`
	// Content is what the cluster has, or is under way to.
	Content string `json:"content,omitempty"`
	// Wave is the wave that is under way, Since when it began.
	Wave  *int32       `json:"wave,omitempty"`
	Since *metav1.Time `json:"since,omitempty"`
}

// The conditions of a Bundle, besides Ready.
const ConditionContentReady = "ContentReady"

// LabelBundle on a Resource is the name of the Bundle that made it.
const LabelBundle = "kontrol/bundle"
