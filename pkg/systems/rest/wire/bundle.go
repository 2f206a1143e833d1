package wire

import "time"

// Bundle is many objects that clusters should have, brought there in order and in waves.
type Bundle struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
	// ClusterID is the name of the one cluster that should have the objects; ClusterSelector selects clusters by their
	// labels instead.
	ClusterID       string `json:"cluster_id"`
	ClusterSelector string `json:"cluster_selector,omitempty"`
	BundleSource
	Mode           string `json:"mode"`
	DeletionPolicy string `json:"deletion_policy"`
	BundleRollout
	// Windows are times in which the objects are, or are not, brought to clusters, applied and corrected.
	Windows    []SyncWindow `json:"windows,omitempty"`
	Generation int64        `json:"generation"`
	// Content identifies the objects, once they were read; ContentApproved says whether it was approved, where that is
	// asked for.
	Content         string `json:"content,omitempty"`
	ContentApproved bool   `json:"content_approved"`
	Objects         int32  `json:"objects"`
	// State says how far it is, or Terminating; Message says why it is not Synced.
	State     string          `json:"state"`
	Message   string          `json:"message,omitempty"`
	Clusters  []BundleCluster `json:"clusters"`
	CreatedAt time.Time       `json:"created_at"`
}

// BundleSource is where objects are. Exactly one field is set.
type BundleSource struct {
	// Inline are YAML or JSON documents, ConfigMap is NAMESPACE/NAME of one that has them, and Artifact is the reference
	// of an OCI artifact.
	Inline    string `json:"inline,omitempty"`
	ConfigMap string `json:"config_map,omitempty"`
	Artifact  string `json:"artifact,omitempty"`
}

// BundleRollout says in which way objects are brought to clusters.
type BundleRollout struct {
	// MaxUnavailable is a number of clusters, or a percentage.
	MaxUnavailable string `json:"max_unavailable,omitempty"`
	// HealthTimeout is how long a wave may take on a cluster, in seconds.
	HealthTimeout int64 `json:"health_timeout_seconds,omitempty"`
	// OnFailure is Stop or Continue, Approval None or Manual.
	OnFailure string `json:"on_failure,omitempty"`
	Approval  string `json:"approval,omitempty"`
	Paused    bool   `json:"paused,omitempty"`
}

// BundleCluster says how far a cluster is.
type BundleCluster struct {
	ClusterID string `json:"cluster_id"`
	State     string `json:"state"`
	Message   string `json:"message,omitempty"`
	// Content is what the cluster has, or is under way to; Wave is the wave that is under way.
	Content string `json:"content,omitempty"`
	Wave    *int32 `json:"wave,omitempty"`
}

// CreateBundle is the body of POST /api/v1/bundles. Name, one source, and either ClusterID or ClusterSelector are
// required.
type CreateBundle struct {
	Name            string `json:"name"`
	ClusterID       string `json:"cluster_id,omitempty"`
	ClusterSelector string `json:"cluster_selector,omitempty"`
	BundleSource
	Mode           string `json:"mode,omitempty"`
	DeletionPolicy string `json:"deletion_policy,omitempty"`
	BundleRollout
	Windows []SyncWindow `json:"windows,omitempty"`
}

// UpdateBundle is the body of PUT /api/v1/bundles/{id}. What is absent stays as it is; a source replaces the former
// one.
type UpdateBundle struct {
	ClusterID       *string `json:"cluster_id,omitempty"`
	ClusterSelector *string `json:"cluster_selector,omitempty"`
	BundleSource
	// Generation, if present, must be the present one: a change that was made meanwhile is not overwritten.
	Generation     *int64  `json:"generation,omitempty"`
	Mode           *string `json:"mode,omitempty"`
	DeletionPolicy *string `json:"deletion_policy,omitempty"`
	MaxUnavailable *string `json:"max_unavailable,omitempty"`
	HealthTimeout  *int64  `json:"health_timeout_seconds,omitempty"`
	OnFailure      *string `json:"on_failure,omitempty"`
	Approval       *string `json:"approval,omitempty"`
	Paused         *bool   `json:"paused,omitempty"`
	// Windows replace all former ones; an empty list removes them.
	Windows *[]SyncWindow `json:"windows,omitempty"`
}

// ApproveBundle is the body of POST /api/v1/bundles/{id}/approve: the content that is approved, as it was read.
type ApproveBundle struct {
	Content string `json:"content"`
}
