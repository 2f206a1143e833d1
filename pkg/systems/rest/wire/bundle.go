package wire

import "time"

// Bundle is a set of objects that clusters should have, rolled out in order and in waves.
type Bundle struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
	// ClusterID names the only target cluster. ClusterSelector selects clusters by their labels instead.
	ClusterID       string `json:"cluster_id"`
	ClusterSelector string `json:"cluster_selector,omitempty"`
	BundleSource
	Mode           string `json:"mode"`
	DeletionPolicy string `json:"deletion_policy"`
	BundleRollout
	// Windows allow or forbid rolling out, applying and correcting the objects at certain times.
	Windows    []SyncWindow `json:"windows,omitempty"`
	Generation int64        `json:"generation"`
	// Content identifies the objects once they were read. ContentApproved is set if manual approval was given for it.
	Content         string `json:"content,omitempty"`
	ContentApproved bool   `json:"content_approved"`
	Objects         int32  `json:"objects"`
	// State is the progress, or Terminating. Message explains a state other than Synced.
	State     string          `json:"state"`
	Message   string          `json:"message,omitempty"`
	Clusters  []BundleCluster `json:"clusters"`
	CreatedAt time.Time       `json:"created_at"`
}

// BundleSource locates the objects. Exactly one field is set.
type BundleSource struct {
	// Inline is YAML or JSON documents. ConfigMap is NAMESPACE/NAME of a ConfigMap with documents. Artifact is the
	// reference of an OCI artifact.
	Inline    string `json:"inline,omitempty"`
	ConfigMap string `json:"config_map,omitempty"`
	Artifact  string `json:"artifact,omitempty"`
}

// BundleRollout controls the rollout to clusters.
type BundleRollout struct {
	// MaxUnavailable is a number of clusters or a percentage.
	MaxUnavailable string `json:"max_unavailable,omitempty"`
	// HealthTimeout bounds a wave on a cluster, in seconds.
	HealthTimeout int64 `json:"health_timeout_seconds,omitempty"`
	// OnFailure is Stop or Continue, Approval None or Manual.
	OnFailure string `json:"on_failure,omitempty"`
	Approval  string `json:"approval,omitempty"`
	Paused    bool   `json:"paused,omitempty"`
}

// BundleCluster is the progress on one cluster.
type BundleCluster struct {
	ClusterID string `json:"cluster_id"`
	State     string `json:"state"`
	Message   string `json:"message,omitempty"`
	// Content is the content that the cluster has or is getting. Wave is the wave in progress.
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

// UpdateBundle is the body of PUT /api/v1/bundles/{id}. Absent fields stay unchanged; a source replaces the previous
// one.
type UpdateBundle struct {
	ClusterID       *string `json:"cluster_id,omitempty"`
	ClusterSelector *string `json:"cluster_selector,omitempty"`
	BundleSource
	// Generation, if present, must equal the present one, so that no other change is overwritten.
	Generation     *int64  `json:"generation,omitempty"`
	Mode           *string `json:"mode,omitempty"`
	DeletionPolicy *string `json:"deletion_policy,omitempty"`
	MaxUnavailable *string `json:"max_unavailable,omitempty"`
	HealthTimeout  *int64  `json:"health_timeout_seconds,omitempty"`
	OnFailure      *string `json:"on_failure,omitempty"`
	Approval       *string `json:"approval,omitempty"`
	Paused         *bool   `json:"paused,omitempty"`
	// Windows replace all previous ones; an empty list removes them.
	Windows *[]SyncWindow `json:"windows,omitempty"`
}

// ApproveBundle is the body of POST /api/v1/bundles/{id}/approve. Content is the approved content, as the client read
// it.
type ApproveBundle struct {
	Content string `json:"content"`
}
