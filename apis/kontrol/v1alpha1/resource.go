package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Resource is an object that one or more clusters should have.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
type Resource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec ResourceSpec `json:"spec"`
	// Status is the observed state, summed up over all clusters, and the history.
	Status ResourceStatus `json:"status,omitempty"`
}

// ResourceList is a list of Resources.
//
// +kubebuilder:object:root=true
type ResourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Resource `json:"items"`
}

// Mode specifies the reaction to drift: changes of the object on a cluster by other clients.
type Mode string

const (
	// ModeReport reports drift and leaves it.
	ModeReport Mode = "Report"
	// ModeCorrect applies drifted fields again.
	ModeCorrect Mode = "Correct"
	// ModeEnforce is like Correct, and also removes fields that other clients added.
	ModeEnforce Mode = "Enforce"
)

// DeletionPolicy specifies what happens to the object on a cluster when the Resource is deleted or no longer
// selects the cluster.
type DeletionPolicy string

const (
	// DeletionOrphan keeps the object, without Kontrol's annotations.
	DeletionOrphan DeletionPolicy = "Orphan"
	// DeletionDelete deletes the object.
	DeletionDelete DeletionPolicy = "Delete"
)

// ResourceSpec specifies an object and the clusters that should have it.
type ResourceSpec struct {
	// ClusterName is the name of a single cluster. Exactly one of clusterName and clusterSelector must be set.
	ClusterName string `json:"clusterName,omitempty"`
	// ClusterSelector selects clusters by their labels. {} selects all clusters.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Template is the object, at most 262144 bytes: apiVersion, kind, metadata.name, metadata.namespace, labels,
	// annotations, and content. An object of a namespaced kind must name its namespace, which has no default. Status
	// and metadata that servers set are rejected. Group, kind, name and namespace are immutable.
	Template runtime.RawExtension `json:"template"`
	// Overrides change the object on some clusters. They are applied in order. At most 32. An override that fails
	// on a cluster is an error only for that cluster.
	Overrides []Override `json:"overrides,omitempty"`
	// Revision is a number for users that identifies the content. It is incremented with each change of the spec,
	// unless the change sets it to another value above 0, which may be lower.
	Revision *int64 `json:"revision,omitempty"`
	// Mode is Report, Correct (the default) or Enforce.
	Mode Mode `json:"mode,omitempty"`
	// Ignore specifies fields that other clients manage.
	Ignore *Ignore `json:"ignore,omitempty"`
	// DeletionPolicy is Orphan or Delete (the default).
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// DependsOn are names of Resources, at most 64, that must be in sync on a cluster before this one is applied
	// there. Resources with Namespaces and CustomResourceDefinitions always come first.
	DependsOn []string `json:"dependsOn,omitempty"`
	// Suspend stops applying the object while it is true. The current state is still recorded.
	Suspend bool `json:"suspend,omitempty"`
	// Windows are times in which the object may, or may not, be applied and corrected. At most 16. Deletions do not
	// wait for them.
	Windows []SyncWindow `json:"windows,omitempty"`
	// Approval is None (the default) or Manual: each generation waits until `coracle kontrol approve NAME` approves
	// it.
	Approval Approval `json:"approval,omitempty"`
}

// WindowKind is the kind of a sync window.
type WindowKind string

const (
	// WindowAllow allows applying in the window. If there is at least one such window, objects are applied only in
	// one of them.
	WindowAllow WindowKind = "Allow"
	// WindowDeny forbids applying in the window. It takes precedence over other windows.
	WindowDeny WindowKind = "Deny"
)

// SyncWindow is a recurring time in which objects may, or may not, be applied and corrected.
type SyncWindow struct {
	// Kind is Allow or Deny.
	Kind WindowKind `json:"kind"`
	// Schedule is the start of the window in cron format, such as "0 22 * * 1-5".
	Schedule string `json:"schedule"`
	// Duration is the length of the window, from 1 minute to 744 hours.
	Duration metav1.Duration `json:"duration"`
	// TimeZone is the time zone of the schedule, such as Europe/Berlin. Defaults to UTC.
	TimeZone string `json:"timeZone,omitempty"`
}

// Override changes the object on some clusters.
type Override struct {
	// ClusterName or ClusterSelector selects the clusters. Without either, the override applies to all clusters.
	ClusterName     string                `json:"clusterName,omitempty"`
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Patch is a JSON patch (RFC 6902) of 1 to 64 operations. It cannot change the identity of the object.
	Patch []PatchOperation `json:"patch"`
}

// PatchOperation is an operation of a JSON patch.
type PatchOperation struct {
	// Op is add, remove, replace, move, copy or test.
	Op string `json:"op"`
	// Path is a JSON pointer (RFC 6901), such as /spec/replicas.
	Path string `json:"path"`
	// From is the JSON pointer of the source for move and copy.
	From string `json:"from,omitempty"`
	// Value is the value for add, replace and test, unless valueFrom is set. It cannot be null: use remove instead.
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
	// ValueFrom takes the value from the Cluster.
	ValueFrom *ValueSource `json:"valueFrom,omitempty"`
}

// ValueSource takes a value from the Cluster. Exactly one of label and name must be set.
type ValueSource struct {
	// Label is the key of a label of the Cluster.
	Label string `json:"label,omitempty"`
	// Name uses the name of the Cluster.
	Name bool `json:"name,omitempty"`
	// Default is used if the Cluster lacks the label. Without it, a missing label is an error for that cluster.
	Default *string `json:"default,omitempty"`
	// Prefix and Suffix are added around the value, at most 256 bytes each.
	Prefix string `json:"prefix,omitempty"`
	Suffix string `json:"suffix,omitempty"`
	// Type is String (the default), Integer or Boolean.
	Type ValueType `json:"type,omitempty"`
}

// ValueType is the JSON type of a value from a label.
type ValueType string

const (
	ValueString  ValueType = "String"
	ValueInteger ValueType = "Integer"
	ValueBoolean ValueType = "Boolean"
)

// Ignore specifies fields that other clients manage. They are applied only when the object is created, and their
// changes are not drift.
type Ignore struct {
	// Fields are paths of fields, at most 64, such as spec.replicas, metadata.annotations["a.b/c"] or
	// spec.template.spec.containers[name="app"].image. [*] matches any element.
	Fields []string `json:"fields,omitempty"`
	// Managers are names of field managers, at most 64, such as an autoscaler's. Fields that they own are ignored.
	Managers []string `json:"managers,omitempty"`
}

// State is the result of comparing the desired, the applied and the current state.
type State string

const (
	// StateSynced means that the desired, applied and current state are equal.
	StateSynced State = "Synced"
	// StateOutOfSync means that the applied state differs from the desired state.
	StateOutOfSync State = "OutOfSync"
	// StatePendingApplied means that the current state differs from the applied state.
	StatePendingApplied State = "PendingApplied"
	// StateDrifted means that another client changed the object on the cluster.
	StateDrifted State = "Drifted"
	// StateConflict means that another manager owns the object or some of its fields.
	StateConflict State = "Conflict"
	// StateUnreachable means that the cluster does not respond or does not exist.
	StateUnreachable State = "Unreachable"
	// StateDegraded means that the object is in sync but has failed.
	StateDegraded State = "Degraded"
)

// ResourceStatus is the observed state of a Resource, summed up over all clusters.
type ResourceStatus struct {
	// ID is a unique, immutable, positive number below 2^53, derived from the UID. The API server sets it.
	ID int64 `json:"id,omitempty"`
	// ObservedGeneration is the generation of the spec that state, clusters and conditions describe.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is the worst state on any cluster.
	State State `json:"state,omitempty"`
	// Message describes the worst state: the problem, the cluster, and what to do.
	Message string `json:"message,omitempty"`
	// Clusters are the numbers of clusters by state.
	Clusters ClusterCounts `json:"clusters,omitempty"`
	// Conditions has the conditions Synced and Healthy. Their reason is the state.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Approved is the generation that was last approved.
	Approved int64 `json:"approved,omitempty"`
	// Accepted is the content that the operator has accepted, on API servers where Kontrol's kinds are custom
	// resources. It is unset on Coracle, whose API server itself accepts what is written.
	Accepted *Accepted `json:"accepted,omitempty"`
	// History has up to 10 previous revisions, newest first, of at most 524288 bytes together. The API server
	// writes it.
	History []Revision `json:"history,omitempty"`
}

// ClusterCounts are numbers of clusters, by the state of a Resource in them.
type ClusterCounts struct {
	// Total is the number of clusters that should have the object.
	Total          int32 `json:"total"`
	Synced         int32 `json:"synced,omitempty"`
	OutOfSync      int32 `json:"outOfSync,omitempty"`
	PendingApplied int32 `json:"pendingApplied,omitempty"`
	Drifted        int32 `json:"drifted,omitempty"`
	Conflict       int32 `json:"conflict,omitempty"`
	Unreachable    int32 `json:"unreachable,omitempty"`
	Degraded       int32 `json:"degraded,omitempty"`
}

// Accepted is the valid content of a Resource.
type Accepted struct {
	// Revision and Generation are the Resource's revision and generation with this content.
	Revision   int64 `json:"revision"`
	Generation int64 `json:"generation"`
	// Template is the object, Overrides the changes for some clusters.
	Template  runtime.RawExtension `json:"template"`
	Overrides []Override           `json:"overrides,omitempty"`
}

// Revision is a previous content of a Resource.
type Revision struct {
	// Revision and Generation are the Resource's revision and generation with this content.
	Revision   int64 `json:"revision"`
	Generation int64 `json:"generation"`
	// Template is the object, Overrides the changes for some clusters.
	Template  runtime.RawExtension `json:"template"`
	Overrides []Override           `json:"overrides,omitempty"`
	// ReplacedAt is when the content was replaced.
	ReplacedAt metav1.Time `json:"replacedAt"`
}

// Conditions of a Resource.
const (
	ConditionSynced  = "Synced"
	ConditionHealthy = "Healthy"
)

const (
	// FinalizerTargets keeps a deleted Resource until its deletion policy has been carried out on its clusters. The
	// API server adds it.
	FinalizerTargets = "kontrol.coracle.dev/targets"
	// AnnotationWave is an annotation of a Resource with its wave, an integer from -1000 to 1000. The default is 0.
	// A Resource is applied to a cluster once all Resources of lower waves with the same value of LabelGroup, or
	// without that label, are in sync there.
	AnnotationWave = "kontrol/wave"
	LabelGroup     = "kontrol/group"

	// FieldManager is the field manager of applied objects.
	FieldManager = "kontrol"
	// AnnotationID, AnnotationGeneration and AnnotationRevision are annotations of objects on clusters with the
	// Resource's id, generation and revision. LabelID has the id too; watches select objects by it.
	AnnotationID         = "kontrol/resource-id"
	AnnotationGeneration = "kontrol/generation"
	AnnotationRevision   = "kontrol/revision"
	LabelID              = "kontrol/resource-id"
)
