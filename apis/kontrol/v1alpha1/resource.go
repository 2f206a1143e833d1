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

	// Spec is the object, and the clusters that should have it.
	Spec ResourceSpec `json:"spec"`
	// Status sums up the states on all clusters, and has the history.
	Status ResourceStatus `json:"status,omitempty"`
}

// ResourceList is a list of resources.
//
// +kubebuilder:object:root=true
type ResourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Resource `json:"items"`
}

// Mode is what is done about drift: about changes that others made to the
// object on a cluster.
type Mode string

const (
	// ModeReport: drift is reported, and left.
	ModeReport Mode = "Report"
	// ModeCorrect: fields that were applied are applied again.
	ModeCorrect Mode = "Correct"
	// ModeEnforce: as Correct, and fields that others added are removed.
	ModeEnforce Mode = "Enforce"
)

// DeletionPolicy is what happens on the clusters once a Resource is deleted or
// no longer names them.
type DeletionPolicy string

const (
	// DeletionOrphan: the object is left there, without Kontrol's annotations.
	DeletionOrphan DeletionPolicy = "Orphan"
	// DeletionDelete: the object is deleted.
	DeletionDelete DeletionPolicy = "Delete"
)

// ResourceSpec is an object, and the clusters that should have it.
type ResourceSpec struct {
	// ClusterName names the one cluster that should have the object. Exactly
	// one of clusterName and clusterSelector is set.
	ClusterName string `json:"clusterName,omitempty"`
	// ClusterSelector selects clusters by their labels; {} selects all.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Template is the object, at most 262144 bytes: apiVersion, kind,
	// metadata.name, metadata.namespace, labels, annotations, and the content.
	// Status and what servers set in metadata are refused. Group, kind, name and
	// namespace cannot be changed.
	Template runtime.RawExtension `json:"template"`
	// Overrides change the object on some clusters, at most 32, in this order.
	// An override that cannot be made on a cluster is an error of that cluster
	// alone.
	Overrides []Override `json:"overrides,omitempty"`
	// Revision identifies the content for people. It rises by one with each
	// change of the spec, unless the change sets it: to any other value above 0,
	// also a lower one.
	Revision *int64 `json:"revision,omitempty"`
	// Mode is Report, Correct (the default) or Enforce.
	Mode Mode `json:"mode,omitempty"`
	// Ignore is what is left to others.
	Ignore *Ignore `json:"ignore,omitempty"`
	// DeletionPolicy is Orphan or Delete (the default).
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// DependsOn are the names of Resources, at most 64, that must be in sync on
	// a cluster before this one is applied there. Namespaces and
	// CustomResourceDefinitions among the Resources come first without it.
	DependsOn []string `json:"dependsOn,omitempty"`
	// Suspend applies nothing while it is true. What is there is still
	// recorded.
	Suspend bool `json:"suspend,omitempty"`
	// Windows are times, at most 16, in which it is, or is not, applied and
	// corrected. Deletions do not wait for them.
	Windows []SyncWindow `json:"windows,omitempty"`
	// Approval is None (the default), or Manual: each generation waits until
	// `coracle kontrol approve NAME` has approved it.
	Approval Approval `json:"approval,omitempty"`
}

// WindowKind says what a window is for.
type WindowKind string

const (
	// WindowAllow: with at least one such window, objects are applied in one of
	// them only.
	WindowAllow WindowKind = "Allow"
	// WindowDeny: in it nothing is applied, whatever the others say.
	WindowDeny WindowKind = "Deny"
)

// SyncWindow is a time, again and again, in which objects are, or are not,
// applied and corrected.
type SyncWindow struct {
	// Kind is Allow or Deny.
	Kind WindowKind `json:"kind"`
	// Schedule is when it begins, in cron's format, such as "0 22 * * 1-5".
	Schedule string `json:"schedule"`
	// Duration is how long it lasts, from 1 minute to 744 hours.
	Duration metav1.Duration `json:"duration"`
	// TimeZone is the schedule's, such as Europe/Berlin; UTC by default.
	TimeZone string `json:"timeZone,omitempty"`
}

// Override changes the object on some clusters.
type Override struct {
	// ClusterName or ClusterSelector selects the clusters; without both it is
	// for all.
	ClusterName     string                `json:"clusterName,omitempty"`
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Patch is a JSON patch (RFC 6902) of 1 to 64 operations. It cannot change
	// which object it is.
	Patch []PatchOperation `json:"patch"`
}

// PatchOperation is an operation of a JSON patch.
type PatchOperation struct {
	// Op is add, remove, replace, move, copy or test.
	Op string `json:"op"`
	// Path is a JSON pointer (RFC 6901), such as /spec/replicas.
	Path string `json:"path"`
	// From is the JSON pointer from which move and copy take the value.
	From string `json:"from,omitempty"`
	// Value is what add, replace and test need, unless valueFrom is set. It
	// cannot be null: use remove.
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
	// ValueFrom takes the value from the Cluster.
	ValueFrom *ValueSource `json:"valueFrom,omitempty"`
}

// ValueSource takes a value from the Cluster. Exactly one of label and name is
// set.
type ValueSource struct {
	// Label is the key of a label of the Cluster.
	Label string `json:"label,omitempty"`
	// Name is the name of the Cluster.
	Name bool `json:"name,omitempty"`
	// Default is used if the Cluster lacks the label; without it that is an
	// error of the cluster.
	Default *string `json:"default,omitempty"`
	// Prefix and Suffix are put around the value, at most 256 bytes each.
	Prefix string `json:"prefix,omitempty"`
	Suffix string `json:"suffix,omitempty"`
	// Type is String (the default), Integer or Boolean.
	Type ValueType `json:"type,omitempty"`
}

// ValueType is how a label's value is written into the object.
type ValueType string

const (
	ValueString  ValueType = "String"
	ValueInteger ValueType = "Integer"
	ValueBoolean ValueType = "Boolean"
)

// Ignore is what is left to others: it is not applied after the object was
// created, and no drift.
type Ignore struct {
	// Fields are paths of fields, at most 64, such as spec.replicas,
	// metadata.annotations["a.b/c"] or
	// spec.template.spec.containers[name="app"].image; [*] is any element.
	Fields []string `json:"fields,omitempty"`
	// Managers are names of field managers, at most 64, such as an
	// autoscaler's: fields that they own are ignored.
	Managers []string `json:"managers,omitempty"`
}

// State compares what is desired, what was applied, and what is there.
type State string

const (
	// StateSynced: desired, applied and current state are the same.
	StateSynced State = "Synced"
	// StateOutOfSync: desired != applied.
	StateOutOfSync State = "OutOfSync"
	// StatePendingApplied: applied != current.
	StatePendingApplied State = "PendingApplied"
	// StateDrifted: another client changed the object on the cluster.
	StateDrifted State = "Drifted"
	// StateConflict: another manager owns the object or some of its fields.
	StateConflict State = "Conflict"
	// StateUnreachable: the cluster does not answer, or there is none.
	StateUnreachable State = "Unreachable"
	// StateDegraded: in sync, but the object has failed.
	StateDegraded State = "Degraded"
)

// ResourceStatus sums up the states on all clusters.
type ResourceStatus struct {
	// ID is unique and never changes: a positive number below 2^53, derived from
	// the UID. The API server sets it.
	ID int64 `json:"id,omitempty"`
	// ObservedGeneration is the generation that state, counts and conditions are
	// about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is the worst state on any cluster.
	State State `json:"state,omitempty"`
	// Message says about the worst state what, where and what to do.
	Message string `json:"message,omitempty"`
	// Clusters counts the clusters by state.
	Clusters ClusterCounts `json:"clusters,omitempty"`
	// Conditions has the conditions Synced and Healthy, whose reason is the
	// state.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Approved is the generation that was approved last.
	Approved int64 `json:"approved,omitempty"`
	// Accepted is the content that the operator has accepted, on API servers
	// that have Kontrol's kinds by definitions; nil on others, which accept what
	// is written themselves.
	Accepted *Accepted `json:"accepted,omitempty"`
	// History has the last 10 revisions before the present one, the newest
	// first, as long as they have at most 524288 bytes. The API server writes
	// it.
	History []Revision `json:"history,omitempty"`
}

// ClusterCounts counts clusters by their state.
type ClusterCounts struct {
	// Total is how many clusters should have the object.
	Total          int32 `json:"total"`
	Synced         int32 `json:"synced,omitempty"`
	OutOfSync      int32 `json:"outOfSync,omitempty"`
	PendingApplied int32 `json:"pendingApplied,omitempty"`
	Drifted        int32 `json:"drifted,omitempty"`
	Conflict       int32 `json:"conflict,omitempty"`
	Unreachable    int32 `json:"unreachable,omitempty"`
	Degraded       int32 `json:"degraded,omitempty"`
}

// Accepted is a content of a Resource that is valid.
type Accepted struct {
	// Revision and Generation are the Resource's.
	Revision   int64 `json:"revision"`
	Generation int64 `json:"generation"`
	// Template is the object, Overrides what changes it.
	Template  runtime.RawExtension `json:"template"`
	Overrides []Override           `json:"overrides,omitempty"`
}

// Revision is a former content of a Resource.
type Revision struct {
	// Revision and Generation are what they were.
	Revision   int64 `json:"revision"`
	Generation int64 `json:"generation"`
	// Template is the object as it was, Overrides what changed it.
	Template  runtime.RawExtension `json:"template"`
	Overrides []Override           `json:"overrides,omitempty"`
	// ReplacedAt is when it was replaced.
	ReplacedAt metav1.Time `json:"replacedAt"`
}

// The conditions of a Resource.
const (
	ConditionSynced  = "Synced"
	ConditionHealthy = "Healthy"
)

const (
	// FinalizerTargets keeps a deleted Resource until its clusters are as its
	// deletion policy says. The API server adds it.
	FinalizerTargets = "kontrol.coracle.dev/targets"
	// AnnotationWave on a Resource is its wave, an integer from -1000 to 1000; 0
	// if it is not set. A Resource is applied to a cluster when all Resources of
	// lower waves with the same value of LabelGroup, or without that label, are
	// in sync there.
	AnnotationWave = "kontrol/wave"
	LabelGroup     = "kontrol/group"

	// FieldManager is the field manager that applies.
	FieldManager = "kontrol"
	// AnnotationID, AnnotationGeneration and AnnotationRevision on objects of
	// clusters are the Resource's id, generation and revision; LabelID, with
	// the id too, selects them for watches.
	AnnotationID         = "kontrol/resource-id"
	AnnotationGeneration = "kontrol/generation"
	AnnotationRevision   = "kontrol/revision"
	LabelID              = "kontrol/resource-id"
)
