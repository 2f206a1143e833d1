package wire

import "time"

// Pod is a group of containers.
type Pod struct {
	PodID         string            `json:"podId"`
	Name          string            `json:"name"`
	Namespace     string            `json:"namespace,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
	Containers    []Container       `json:"containers"`
	Status        string            `json:"status"`
	NodeID        string            `json:"nodeId,omitempty"`
	RestartPolicy string            `json:"restartPolicy,omitempty"`
	CreatedAt     time.Time         `json:"createdAt"`
	ScheduledAt   *time.Time        `json:"scheduledAt,omitempty"`
	StartedAt     *time.Time        `json:"startedAt,omitempty"`
	FinishedAt    *time.Time        `json:"finishedAt,omitempty"`
	Message       string            `json:"message,omitempty"`
	Reason        string            `json:"reason,omitempty"`
	// SchedulingError is only set in the answer to a create, if no node can take the pod now.
	SchedulingError string `json:"schedulingError,omitempty"`
}

// Container is a container of a pod. The fields from ContainerID on are its state.
type Container struct {
	Name           string            `json:"name"`
	Image          string            `json:"image"`
	Command        []string          `json:"command,omitempty"`
	Args           []string          `json:"args,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Ports          []ContainerPort   `json:"ports,omitempty"`
	LivenessProbe  *HealthCheck      `json:"livenessProbe,omitempty"`
	ReadinessProbe *HealthCheck      `json:"readinessProbe,omitempty"`
	WorkingDir     string            `json:"workingDir,omitempty"`
	Resources      Requirements      `json:"resources,omitempty"`

	ContainerID  string     `json:"containerId,omitempty"`
	Status       string     `json:"status,omitempty"`
	HealthStatus string     `json:"healthStatus,omitempty"`
	StartedAt    *time.Time `json:"startedAt,omitempty"`
	FinishedAt   *time.Time `json:"finishedAt,omitempty"`
	ExitCode     *int       `json:"exitCode,omitempty"`
	Error        string     `json:"error,omitempty"`
	RestartCount int        `json:"restartCount,omitempty"`
}

// CreatePod is the body of POST /api/v1/pods. Name and Containers are required. RestartPolicy defaults to Never.
type CreatePod struct {
	Name          string            `json:"name"`
	Namespace     string            `json:"namespace,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
	Containers    []Container       `json:"containers"`
	RestartPolicy string            `json:"restartPolicy,omitempty"`
}

// PatchPod is the body of PATCH /api/v1/pods/{id}. NodeName is required, here or in Spec.
type PatchPod struct {
	NodeName string   `json:"nodeName,omitempty"`
	Spec     NodeSpec `json:"spec,omitempty"`
}

// NodeSpec is the part of a pod's spec that can be changed.
type NodeSpec struct {
	NodeName string `json:"nodeName,omitempty"`
}

// PodStatus is the body of PUT /api/v1/pods/{id}/status. Status is required.
type PodStatus struct {
	Status      string            `json:"status"`
	Containers  []Container       `json:"containers,omitempty"`
	Message     string            `json:"message,omitempty"`
	Reason      string            `json:"reason,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ExecutePod is the body of a request that gives a pod to a worker.
type ExecutePod struct {
	Pod Pod `json:"pod"`
}

// PodLogs is the answer of GET /api/v1/pods/{id}/logs, by container.
type PodLogs struct {
	PodID string            `json:"podId"`
	Logs  map[string]string `json:"logs"`
	Tail  int               `json:"tail"`
}
