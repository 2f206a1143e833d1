package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AppliedState is what was last applied of a Resource to a cluster. Its name is
// the Resource's, a dot, and the cluster's.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type AppliedState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// State is what was applied.
	State Applied `json:"state"`
}

// AppliedStateList is a list of applied states.
//
// +kubebuilder:object:root=true
type AppliedStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AppliedState `json:"items"`
}

// Subject identifies a Resource, a cluster, and the object there.
type Subject struct {
	// Resource is the Resource's name, ResourceUID its UID and ResourceID its
	// status.id.
	Resource    string `json:"resource"`
	ResourceUID string `json:"resourceUID"`
	ResourceID  int64  `json:"resourceID"`
	// Cluster is the cluster's name.
	Cluster string `json:"cluster"`
	// Target is the object on the cluster.
	Target Target `json:"target"`
}

// Target identifies an object of a cluster.
type Target struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Applied is what was last applied.
type Applied struct {
	Subject `json:",inline"`

	// Generation and Revision are the Resource's when it was last applied; 0 if
	// it never was.
	Generation int64 `json:"generation"`
	Revision   int64 `json:"revision"`
	// Variant identifies what overrides made of the object for the cluster;
	// empty without.
	Variant string `json:"variant,omitempty"`
	// Attempted is set before the first attempt: from then on the object may be
	// there, also if no answer came.
	Attempted bool `json:"attempted,omitempty"`
	// Object is what the cluster answered to the apply, without status and
	// managed fields. Values of Secrets are replaced by hashes.
	Object runtime.RawExtension `json:"object,omitempty"`
	// Fields are the fields that were applied, in the form of managed fields.
	Fields runtime.RawExtension `json:"fields,omitempty"`
	// Status is the result of the last attempt.
	Status ApplyStatus `json:"status"`
	// AttemptedGeneration is the Resource's generation in the last attempt.
	AttemptedGeneration int64 `json:"attemptedGeneration,omitempty"`
	// Reason and Error say why the last attempt failed or what it waits for: in
	// one word, and in at most 1024 bytes.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	// Time is when status, generation or error changed.
	Time *metav1.MicroTime `json:"time,omitempty"`
	// AppliedAt is when it was applied last, Corrections how often drift was
	// corrected since the generation was first applied.
	AppliedAt   *metav1.MicroTime `json:"appliedAt,omitempty"`
	Corrections int32             `json:"corrections,omitempty"`
}

// ApplyStatus is the result of an attempt to apply.
type ApplyStatus string

const (
	// ApplyPending: not attempted yet.
	ApplyPending ApplyStatus = "Pending"
	// ApplyApplied: the cluster accepted it.
	ApplyApplied ApplyStatus = "Applied"
	// ApplyWaiting: it waits for something, such as a dependency or a kind.
	ApplyWaiting ApplyStatus = "Waiting"
	// ApplyFailed: the cluster refused it, or could not be reached.
	ApplyFailed ApplyStatus = "Failed"
	// ApplyConflict: another manager owns the object or some of its fields.
	ApplyConflict ApplyStatus = "Conflict"
)

// The reasons of applied states. Others come from the cluster's response.
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

// CurrentState is what a cluster has of a Resource now. Its name is the
// Resource's, a dot, and the cluster's.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type CurrentState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// State is what is there.
	State Current `json:"state"`
}

// CurrentStateList is a list of current states.
//
// +kubebuilder:object:root=true
type CurrentStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CurrentState `json:"items"`
}

// Current is what is there.
type Current struct {
	Subject `json:",inline"`

	// Present is true if the object exists.
	Present bool `json:"present"`
	// Generation and Revision are from the object's annotations.
	Generation int64 `json:"generation"`
	Revision   int64 `json:"revision"`
	// UID is the object's. ResourceVersion is the object's on the cluster when
	// anything recorded here last changed.
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Object is the object without status and managed fields. Values of Secrets
	// are replaced by hashes.
	Object runtime.RawExtension `json:"object,omitempty"`
	// Health is Healthy, Progressing, Degraded, or Missing if the object does
	// not exist; HealthMessage says why.
	Health        Health `json:"health,omitempty"`
	HealthMessage string `json:"healthMessage,omitempty"`
	// Drift are the first 64 fields that others changed, DriftCount is how many
	// there are. Added fields count in the mode Enforce only.
	Drift      []Drift `json:"drift,omitempty"`
	DriftCount int32   `json:"driftCount,omitempty"`
	// Reason and Error say why what is there cannot be read: in one word, and in
	// at most 1024 bytes.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	// Time is when anything recorded here changed.
	Time *metav1.MicroTime `json:"time,omitempty"`
}

// Health is whether an object works.
type Health string

const (
	HealthHealthy     Health = "Healthy"
	HealthProgressing Health = "Progressing"
	HealthDegraded    Health = "Degraded"
	HealthMissing     Health = "Missing"
)

// DriftType says what became of a field.
type DriftType string

const (
	// DriftChanged: an applied field has another value.
	DriftChanged DriftType = "Changed"
	// DriftRemoved: an applied field, or the object, is gone.
	DriftRemoved DriftType = "Removed"
	// DriftAdded: another client set a field that was not applied.
	DriftAdded DriftType = "Added"
)

// Drift is a field that another client changed.
type Drift struct {
	// Path is the field, such as .spec.replicas; empty for the object.
	Path string `json:"path"`
	// Type is Changed, Removed or Added.
	Type DriftType `json:"type"`
	// Desired and Actual are the values as JSON, at most 256 bytes of each, and
	// none for Secrets.
	Desired string `json:"desired,omitempty"`
	Actual  string `json:"actual,omitempty"`
	// Manager is the field manager that changed it, Operation Apply or Update,
	// and Time when; they are empty if the cluster does not know.
	Manager   string       `json:"manager,omitempty"`
	Operation string       `json:"operation,omitempty"`
	Time      *metav1.Time `json:"time,omitempty"`
	// FirstSeen is when the watcher saw it first.
	FirstSeen metav1.MicroTime `json:"firstSeen"`
}
