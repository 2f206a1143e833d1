package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AppliedState is the object that was last applied for a Resource to a cluster. Its name is RESOURCE.CLUSTER.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type AppliedState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// State is the applied state.
	State Applied `json:"state"`
}

// AppliedStateList is a list of AppliedStates.
//
// +kubebuilder:object:root=true
type AppliedStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AppliedState `json:"items"`
}

// Subject identifies a Resource, a cluster, and the object on the cluster.
type Subject struct {
	// Resource, ResourceUID and ResourceID are the name, UID and status.id of the Resource.
	Resource    string `json:"resource"`
	ResourceUID string `json:"resourceUID"`
	ResourceID  int64  `json:"resourceID"`
	// Cluster is the name of the cluster.
	Cluster string `json:"cluster"`
	// Target is the object on the cluster.
	Target Target `json:"target"`
}

// Target identifies an object on a cluster.
type Target struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Applied is the state that was last applied.
type Applied struct {
	Subject `json:",inline"`

	// Generation and Revision are the Resource's generation and revision when it was last applied, or 0 if it never
	// was.
	Generation int64 `json:"generation"`
	Revision   int64 `json:"revision"`
	// Variant identifies the result of the overrides for the cluster. It is empty without overrides.
	Variant string `json:"variant,omitempty"`
	// Attempted is set before the first attempt. From then on the object may exist, even if the cluster did not
	// respond.
	Attempted bool `json:"attempted,omitempty"`
	// Object is the cluster's response to the apply, without status and managed fields. Values of Secrets are
	// replaced by hashes.
	Object runtime.RawExtension `json:"object,omitempty"`
	// Fields are the applied fields, in the format of managed fields.
	Fields runtime.RawExtension `json:"fields,omitempty"`
	// Status is the result of the last attempt.
	Status ApplyStatus `json:"status"`
	// AttemptedGeneration is the Resource's generation in the last attempt.
	AttemptedGeneration int64 `json:"attemptedGeneration,omitempty"`
	// Reason and Error describe why the last attempt failed or what it is waiting for: Reason in one word, Error in
	// at most 1024 bytes.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	// WaitsFor is the Resource that must be in sync on the cluster before the next attempt.
	WaitsFor string `json:"waitsFor,omitempty"`
	// Time is when status, generation or error last changed.
	Time *metav1.MicroTime `json:"time,omitempty"`
	// AppliedAt is when the object was last applied. Corrections is the number of corrections of drift since the
	// generation was first applied.
	AppliedAt   *metav1.MicroTime `json:"appliedAt,omitempty"`
	Corrections int32             `json:"corrections,omitempty"`
	// ResourceVersion is the object's resourceVersion on the cluster after the last apply.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// ApplyStatus is the result of an attempt to apply.
type ApplyStatus string

const (
	// ApplyPending means that there was no attempt yet.
	ApplyPending ApplyStatus = "Pending"
	// ApplyApplied means that the cluster accepted the object.
	ApplyApplied ApplyStatus = "Applied"
	// ApplyWaiting means that the apply waits, for example for a dependency or a kind.
	ApplyWaiting ApplyStatus = "Waiting"
	// ApplyFailed means that the cluster rejected the object or could not be reached.
	ApplyFailed ApplyStatus = "Failed"
	// ApplyConflict means that another manager owns the object or some of its fields.
	ApplyConflict ApplyStatus = "Conflict"
)

// Reasons of applied states. Further reasons come from the cluster's response.
const (
	ReasonDependency      = "Dependency"
	ReasonDependencyCycle = "DependencyCycle"
	ReasonSuspended       = "Suspended"
	ReasonApproval        = "Approval"
	ReasonWindow          = "SyncWindow"
	ReasonNoKind          = "NoKind"
	ReasonNoCluster       = "NoCluster"
	ReasonSameObject      = "SameObject"
	ReasonFieldConflict   = "FieldConflict"
	ReasonOverride        = "Override"
)

// CurrentState is the current state of a Resource's object on a cluster. Its name is RESOURCE.CLUSTER.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type CurrentState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// State is the current state.
	State Current `json:"state"`
}

// CurrentStateList is a list of CurrentStates.
//
// +kubebuilder:object:root=true
type CurrentStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CurrentState `json:"items"`
}

// Current is the current state of an object.
type Current struct {
	Subject `json:",inline"`

	// Present is true if the object exists.
	Present bool `json:"present"`
	// Generation and Revision are those in the object's annotations.
	Generation int64 `json:"generation"`
	Revision   int64 `json:"revision"`
	// UID is the UID of the object. ResourceVersion is the object's resourceVersion on the cluster, accurate to a
	// second.
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Object is the object without status and managed fields. Values of Secrets
	// are replaced by hashes.
	Object runtime.RawExtension `json:"object,omitempty"`
	// Health is Healthy, Progressing, Degraded, or Missing if the object does not exist. HealthMessage describes
	// the reason.
	Health        Health `json:"health,omitempty"`
	HealthMessage string `json:"healthMessage,omitempty"`
	// Drift lists the first 64 fields that other clients changed. DriftCount is the number of all such fields.
	// Added fields count only in mode Enforce.
	Drift      []Drift `json:"drift,omitempty"`
	DriftCount int32   `json:"driftCount,omitempty"`
	// Reason and Error describe why the object cannot be read: Reason in one word, Error in at most 1024 bytes.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	// Time is when this state last changed.
	Time *metav1.MicroTime `json:"time,omitempty"`
}

// Health is the health of an object.
type Health string

const (
	HealthHealthy     Health = "Healthy"
	HealthProgressing Health = "Progressing"
	HealthDegraded    Health = "Degraded"
	HealthMissing     Health = "Missing"
)

// DriftType is the type of a change to a field.
type DriftType string

const (
	// DriftChanged means that an applied field has another value.
	DriftChanged DriftType = "Changed"
	// DriftRemoved means that an applied field or the object was removed.
	DriftRemoved DriftType = "Removed"
	// DriftAdded means that another client set a field that was not applied.
	DriftAdded DriftType = "Added"
)

// Drift is a field that another client changed.
type Drift struct {
	// Path is the path of the field, such as .spec.replicas. It is empty for the whole object.
	Path string `json:"path"`
	// Type is Changed, Removed or Added.
	Type DriftType `json:"type"`
	// Desired and Actual are the values as JSON, at most 256 bytes each. They are empty for Secrets.
	Desired string `json:"desired,omitempty"`
	Actual  string `json:"actual,omitempty"`
	// Manager is the field manager that changed the field, Operation is Apply or Update, and Time is when. They are
	// empty if the cluster did not record them.
	Manager   string       `json:"manager,omitempty"`
	Operation string       `json:"operation,omitempty"`
	Time      *metav1.Time `json:"time,omitempty"`
	// FirstSeen is when the watcher first observed the change.
	FirstSeen metav1.MicroTime `json:"firstSeen"`
}
