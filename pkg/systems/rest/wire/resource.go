package wire

import (
	"encoding/json"
	"time"
)

// Resource is an object that clusters should have. Field names come from Kontrol's tables.
type Resource struct {
	ID int64 `json:"id"`
	// ClusterID names the only target cluster. ClusterSelector selects clusters by their labels instead.
	ClusterID       string `json:"cluster_id"`
	ClusterSelector string `json:"cluster_selector,omitempty"`
	Namespace       string `json:"namespace"`
	APIVersion      string `json:"api_version"`
	Kind            string `json:"kind"`
	Name            string `json:"name"`
	// DesiredSpec is the whole object.
	DesiredSpec json.RawMessage `json:"desired_spec"`
	Placement
	// Generation counts the changes. Revision identifies the content, and may be set.
	Generation     int64  `json:"generation"`
	Revision       int64  `json:"revision"`
	Mode           string `json:"mode"`
	DeletionPolicy string `json:"deletion_policy"`
	Suspend        bool   `json:"suspend"`
	// Windows allow or forbid applying and correcting the object at certain times.
	Windows []SyncWindow `json:"windows,omitempty"`
	// Approval is None or Manual, which makes each generation wait for approval. ApprovedGeneration is the latest
	// approved generation.
	Approval           string `json:"approval,omitempty"`
	ApprovedGeneration int64  `json:"approved_generation,omitempty"`
	// ResourceName is the name of the Resource in the Kubernetes API.
	ResourceName string `json:"resource_name"`
	// State is the worst state on any cluster, or Terminating. Message explains a state other than Synced.
	State         string         `json:"state"`
	Message       string         `json:"message,omitempty"`
	CreatedAt     time.Time      `json:"created_at"`
	CurrentStates []CurrentState `json:"current_states"`
	AppliedStates []AppliedState `json:"applied_states"`
}

// SyncWindow is a recurring time that allows or forbids applying and correcting objects.
type SyncWindow struct {
	// Kind is Allow or Deny.
	Kind string `json:"kind"`
	// Schedule is the beginning, in cron's format.
	Schedule string `json:"schedule"`
	// Duration is the length, such as 8h or 90m: from 1 minute to 744 hours.
	Duration string `json:"duration"`
	// TimeZone is the time zone of Schedule, such as Europe/Berlin; UTC by default.
	TimeZone string `json:"time_zone,omitempty"`
}

// CurrentState is the current object of a Resource on a cluster.
type CurrentState struct {
	ResourceID int64  `json:"resource_id"`
	ClusterID  string `json:"cluster_id"`
	// Spec is the whole object without its status; null if there is none. Values of Secrets are hashed.
	Spec               json.RawMessage `json:"spec"`
	Generation         int64           `json:"generation"`
	Revision           int64           `json:"revision"`
	K8sResourceVersion string          `json:"k8s_resource_version"`
	Health             string          `json:"health,omitempty"`
	DriftCount         int32           `json:"drift_count"`
	Drift              []Drift         `json:"drift,omitempty"`
	ErrorMessage       string          `json:"error_message,omitempty"`
	UpdatedAt          *time.Time      `json:"updated_at,omitempty"`
}

// AppliedState is the result of the last apply of a Resource to a cluster.
type AppliedState struct {
	ResourceID int64  `json:"resource_id"`
	ClusterID  string `json:"cluster_id"`
	// Spec is the object in the cluster's answer, without its status; null if it was never applied. Values of Secrets
	// are hashed.
	Spec         json.RawMessage `json:"spec"`
	Generation   int64           `json:"generation"`
	Revision     int64           `json:"revision"`
	Status       string          `json:"status"`
	ErrorMessage string          `json:"error_message,omitempty"`
	UpdatedAt    *time.Time      `json:"updated_at,omitempty"`
}

// CreateResource is the body of POST /api/v1/resources. DesiredSpec and either ClusterID or ClusterSelector are
// required.
type CreateResource struct {
	ClusterID       string `json:"cluster_id,omitempty"`
	ClusterSelector string `json:"cluster_selector,omitempty"`
	// Namespace, APIVersion, Kind and Name may be left out if DesiredSpec has them, APIVersion also for Kubernetes' own
	// kinds.
	Namespace  string `json:"namespace,omitempty"`
	APIVersion string `json:"api_version,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name,omitempty"`
	// DesiredSpec is the object, or only its spec: then none of its fields is one of the kind itself.
	DesiredSpec json.RawMessage `json:"desired_spec"`
	Placement
	Revision       *int64       `json:"revision,omitempty"`
	Mode           string       `json:"mode,omitempty"`
	DeletionPolicy string       `json:"deletion_policy,omitempty"`
	Suspend        bool         `json:"suspend,omitempty"`
	Windows        []SyncWindow `json:"windows,omitempty"`
	Approval       string       `json:"approval,omitempty"`
}

// PutResource is the body of PUT /api/v1/resources/{id}, which replaces all of a resource but its clusters and the
// identity of its object, which may be left out. PATCH of the same path merges a part of it into what there is
// (RFC 7386).
type PutResource struct {
	CreateResource
	// Generation, if present, must be the present one: a change that was made meanwhile is not overwritten. Revision, if
	// it is another than the present one, is set.
	Generation *int64 `json:"generation,omitempty"`
}

// ApproveResource is the body of POST /api/v1/resources/{id}/approve. Generation is the approved one, as the client
// read it.
type ApproveResource struct {
	Generation int64 `json:"generation"`
}

// RollbackResource is the body of POST /api/v1/resources/{id}/rollback: the former revision whose content is restored,
// or the former generation.
type RollbackResource struct {
	Revision   int64 `json:"revision,omitempty"`
	Generation int64 `json:"generation,omitempty"`
}

// Revision is the present or a former content of a resource.
type Revision struct {
	Revision    int64             `json:"revision"`
	Generation  int64             `json:"generation"`
	ReplacedAt  *time.Time        `json:"replaced_at,omitempty"`
	DesiredSpec json.RawMessage   `json:"desired_spec"`
	Overrides   []json.RawMessage `json:"overrides,omitempty"`
}

// Cluster is a cluster to which resources are applied. State is Ready, or why it is not.
type Cluster struct {
	ClusterID string            `json:"cluster_id"`
	Labels    map[string]string `json:"labels,omitempty"`
	Local     bool              `json:"local"`
	Pull      bool              `json:"pull"`
	Suspend   bool              `json:"suspend"`
	Server    string            `json:"server,omitempty"`
	Version   string            `json:"version,omitempty"`
	State     string            `json:"state"`
	Message   string            `json:"message,omitempty"`
	LastSeen  *time.Time        `json:"last_seen,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// Drift is a field that another client changed on a cluster. Type is Changed, Removed or Added.
type Drift struct {
	Path      string     `json:"path"`
	Type      string     `json:"type"`
	Desired   string     `json:"desired,omitempty"`
	Actual    string     `json:"actual,omitempty"`
	Manager   string     `json:"manager,omitempty"`
	Operation string     `json:"operation,omitempty"`
	Time      *time.Time `json:"time,omitempty"`
	FirstSeen time.Time  `json:"first_seen"`
}

// Placement is how a resource differs between clusters and which come first. Overrides and Ignore have the form of a
// Resource's spec.overrides and spec.ignore, DependsOn the resource_name of others. Lower waves come first.
type Placement struct {
	Overrides []json.RawMessage `json:"overrides,omitempty"`
	Ignore    json.RawMessage   `json:"ignore,omitempty"`
	DependsOn []string          `json:"depends_on,omitempty"`
	Wave      int               `json:"wave,omitempty"`
}
