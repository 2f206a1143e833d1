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
	// Namespace, APIVersion, Kind and Name may be omitted if DesiredSpec has them. APIVersion may also be omitted for
	// Kubernetes' own kinds.
	Namespace      string          `json:"namespace,omitempty"`
	APIVersion     string          `json:"api_version,omitempty"`
	Kind           string          `json:"kind,omitempty"`
	Name           string          `json:"name,omitempty"`
	DesiredSpec    json.RawMessage `json:"desired_spec"`
	Revision       *int64          `json:"revision,omitempty"`
	Mode           string          `json:"mode,omitempty"`
	DeletionPolicy string          `json:"deletion_policy,omitempty"`
	Suspend        bool            `json:"suspend,omitempty"`
	Windows        []SyncWindow    `json:"windows,omitempty"`
	Approval       string          `json:"approval,omitempty"`
}

// UpdateResource is the body of PUT /api/v1/resources/{id}. Absent fields stay unchanged, except for the revision,
// which increases.
type UpdateResource struct {
	ClusterID       *string `json:"cluster_id,omitempty"`
	ClusterSelector *string `json:"cluster_selector,omitempty"`
	// DesiredSpec may omit the identity of the object, which is immutable.
	DesiredSpec json.RawMessage `json:"desired_spec,omitempty"`
	// Generation, if present, must equal the present one, so that no other change is overwritten.
	Generation *int64 `json:"generation,omitempty"`
	// Revision is set if it differs from the present one.
	Revision       *int64  `json:"revision,omitempty"`
	Mode           *string `json:"mode,omitempty"`
	DeletionPolicy *string `json:"deletion_policy,omitempty"`
	Suspend        *bool   `json:"suspend,omitempty"`
	// Windows replace all previous ones; an empty list removes them.
	Windows  *[]SyncWindow `json:"windows,omitempty"`
	Approval *string       `json:"approval,omitempty"`
}

// ApproveResource is the body of POST /api/v1/resources/{id}/approve. Generation is the approved one, as the client
// read it.
type ApproveResource struct {
	Generation int64 `json:"generation"`
}
