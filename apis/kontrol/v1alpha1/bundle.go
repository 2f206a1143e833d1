package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Bundle is a set of objects for one or more clusters, rolled out cluster by cluster and wave by wave. It creates and
// owns a Resource for each object and cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
type Bundle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec BundleSpec `json:"spec"`
	// Status is the observed state.
	Status BundleStatus `json:"status,omitempty"`
}

// BundleList is a list of Bundles.
//
// +kubebuilder:object:root=true
type BundleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Bundle `json:"items"`
}

// BundleSpec specifies the objects, the clusters, and the rollout.
type BundleSpec struct {
	// Source is the source of the objects.
	Source BundleSource `json:"source"`
	// ClusterName is the name of a single cluster. Exactly one of clusterName and clusterSelector must be set.
	ClusterName string `json:"clusterName,omitempty"`
	// ClusterSelector selects clusters by their labels. {} selects all clusters.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Overrides change some of the objects on some clusters. They are applied in order. At most 32.
	Overrides []BundleOverride `json:"overrides,omitempty"`
	// Mode, Ignore and DeletionPolicy are copied to the Bundle's Resources. Mode is Report (drift is only reported),
	// Correct (the default: drifted fields are applied again) or Enforce (fields that others added are removed, too).
	Mode           Mode           `json:"mode,omitempty"`
	Ignore         *Ignore        `json:"ignore,omitempty"`
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// Rollout specifies the order and speed of the rollout.
	Rollout Rollout `json:"rollout,omitempty"`
	// Windows are times in which the objects may, or may not, be rolled out, applied and corrected. At most 16.
	Windows []SyncWindow `json:"windows,omitempty"`
}

// BundleSource is the source of a Bundle's objects. Exactly one field must be set. The objects are YAML or JSON
// documents: at most 500, of at most 262144 bytes each. An object's annotation kontrol/wave is its wave, an integer
// from -1000 to 1000. Defaults to 0.
type BundleSource struct {
	// Inline has the documents themselves, at most 524288 bytes.
	Inline string `json:"inline,omitempty"`
	// ConfigMap has documents in its values, in the order of their keys.
	ConfigMap *ConfigMapReference `json:"configMap,omitempty"`
	// Artifact is an OCI artifact whose layers are documents (media types that
	// end in yaml or json) or archives of files (tar and tar+gzip), of which
	// files that end in .yaml, .yml or .json are read.
	Artifact *Artifact `json:"artifact,omitempty"`
}

// ConfigMapReference refers to a ConfigMap.
type ConfigMapReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Artifact is an OCI artifact in a registry.
type Artifact struct {
	// Reference is HOST/PATH:TAG, which is resolved again at each interval, or HOST/PATH@sha256:DIGEST, which never
	// changes.
	Reference string `json:"reference"`
	// Path is a directory in the artifact's archives. Only files in it are read.
	Path string `json:"path,omitempty"`
	// PullSecret refers to a Secret with registry credentials. The key defaults to .dockerconfigjson.
	PullSecret *SecretReference `json:"pullSecret,omitempty"`
	// Interval is how often a tag is resolved again, at least 10 seconds. Defaults to 5 minutes.
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// BundleOverride overrides some of a Bundle's objects.
type BundleOverride struct {
	// Kind, Namespace and Name select the objects. An empty one matches any value.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`

	Override `json:",inline"`
}

// FailurePolicy specifies how a rollout continues after a cluster has failed.
type FailurePolicy string

const (
	// FailureStop changes no cluster until the failed cluster has recovered or the content changes.
	FailureStop FailurePolicy = "Stop"
	// FailureContinue continues on other clusters, within maxUnavailable.
	FailureContinue FailurePolicy = "Continue"
)

// Approval specifies whether changes need a user's approval.
type Approval string

const (
	// ApprovalNone applies changes as soon as possible.
	ApprovalNone Approval = "None"
	// ApprovalManual applies changes after a user has approved them.
	ApprovalManual Approval = "Manual"
)

// Rollout specifies the order and speed of a rollout. On each cluster a wave begins once all objects of the
// previous waves are in sync and healthy there.
type Rollout struct {
	// Order is a list of cluster selectors, at most 16. Clusters that the first selects come first, clusters that
	// none selects come last. Clusters of equal rank are ordered by name.
	Order []metav1.LabelSelector `json:"order,omitempty"`
	// MaxUnavailable is the maximum number of clusters that may be in progress or unhealthy at a time, as a number
	// or a percentage (rounded down, at least 1). Defaults to 1.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// HealthTimeout is how long a wave may take on a cluster before the cluster counts as failed, from 1 second to
	// 24 hours. Defaults to 5 minutes.
	HealthTimeout *metav1.Duration `json:"healthTimeout,omitempty"`
	// OnFailure is Stop (the default) or Continue.
	OnFailure FailurePolicy `json:"onFailure,omitempty"`
	// Paused stops all changes while it is true.
	Paused bool `json:"paused,omitempty"`
	// Approval is None (the default) or Manual: new content waits until `coracle kontrol approve bundle/NAME`
	// approves it.
	Approval Approval `json:"approval,omitempty"`
}

// BundlePhase is the phase of a Bundle.
type BundlePhase string

const (
	// BundleSynced means that all clusters have the content and are healthy.
	BundleSynced BundlePhase = "Synced"
	// BundleProgressing means that clusters are being changed.
	BundleProgressing BundlePhase = "Progressing"
	// BundleWaiting means that the Bundle waits for clusters or for approval.
	BundleWaiting BundlePhase = "Waiting"
	// BundlePaused means that spec.rollout.paused is true.
	BundlePaused BundlePhase = "Paused"
	// BundleFailed means that a cluster has failed.
	BundleFailed BundlePhase = "Failed"
	// BundleInvalid means that the content cannot be read. The clusters keep their current content.
	BundleInvalid BundlePhase = "Invalid"
)

// BundleStatus is the observed state of a Bundle.
type BundleStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase and Message describe the state of the rollout, problems, and what to do about them.
	Phase   BundlePhase `json:"phase,omitempty"`
	Message string      `json:"message,omitempty"`
	// Content identifies the objects including overrides. Objects is the number of objects.
	Content string `json:"content,omitempty"`
	Objects int32  `json:"objects,omitempty"`
	// Artifact is the digest of the artifact from which the content was read.
	Artifact string `json:"artifact,omitempty"`
	// Approved is the content that was last approved.
	Approved string `json:"approved,omitempty"`
	// Clusters are the numbers of clusters by phase.
	Clusters BundleCounts `json:"clusters,omitempty"`
	// Waves has the progress of each wave, at most 64.
	Waves []BundleWave `json:"waves,omitempty"`
	// Targets are the clusters in rollout order, at most 500.
	Targets []BundleTarget `json:"targets,omitempty"`
	// Conditions has the conditions Ready and ContentReady.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BundleCounts are numbers of clusters, by the state of a Bundle in them.
type BundleCounts struct {
	// Total is the number of clusters that should have the content.
	Total       int32 `json:"total"`
	Synced      int32 `json:"synced,omitempty"`
	Progressing int32 `json:"progressing,omitempty"`
	Waiting     int32 `json:"waiting,omitempty"`
	Failed      int32 `json:"failed,omitempty"`
}

// BundleWave is the progress of a wave.
type BundleWave struct {
	// Wave is the number of the wave, Objects the number of its objects.
	Wave    int32 `json:"wave"`
	Objects int32 `json:"objects"`
	// Clusters is the number of clusters on which all objects of the wave are in sync and healthy.
	Clusters int32 `json:"clusters"`
}

// TargetPhase is the phase of a cluster in a rollout.
type TargetPhase string

const (
	TargetSynced      TargetPhase = "Synced"
	TargetProgressing TargetPhase = "Progressing"
	TargetWaiting     TargetPhase = "Waiting"
	TargetFailed      TargetPhase = "Failed"
)

// BundleTarget is the progress of a cluster in a rollout.
type BundleTarget struct {
	// Name is the name of the cluster.
	Name string `json:"name"`
	// Phase and Message describe the progress and problems.
	Phase   TargetPhase `json:"phase"`
	Message string      `json:"message,omitempty"`
	// Content is the content that the cluster has or is changing to.
	Content string `json:"content,omitempty"`
	// Wave is the current wave, Since when it began.
	Wave  *int32       `json:"wave,omitempty"`
	Since *metav1.Time `json:"since,omitempty"`
}

// ConditionContentReady is a condition of a Bundle besides Ready.
const ConditionContentReady = "ContentReady"

// LabelBundle is a label of Resources with the name of the Bundle that created them.
const LabelBundle = "kontrol/bundle"

// Phase returns the phase of a Bundle. It is Progressing until the latest generation has been observed.
func (b *Bundle) Phase() string {
	switch {
	case b.DeletionTimestamp != nil:
		return StateTerminating
	case b.Status.ObservedGeneration != b.Generation:
		return string(BundleProgressing)
	}
	return string(b.Status.Phase)
}

// WavesDone returns "done/all" for the waves that all clusters have completed.
func (b *Bundle) WavesDone() string {
	done := 0
	for _, w := range b.Status.Waves {
		if w.Clusters == b.Status.Clusters.Total {
			done++
		}
	}
	return fmt.Sprintf("%d/%d", done, len(b.Status.Waves))
}

// String describes the source.
func (s *BundleSource) String() string {
	switch {
	case s.ConfigMap != nil:
		return "configmap " + s.ConfigMap.Namespace + "/" + s.ConfigMap.Name
	case s.Artifact != nil:
		return s.Artifact.Reference
	}
	return "inline"
}
