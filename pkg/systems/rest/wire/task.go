package wire

import "time"

// Task is one container that runs to completion.
type Task struct {
	TaskID         string            `json:"taskId"`
	Name           string            `json:"name"`
	Image          string            `json:"image"`
	Env            map[string]string `json:"env,omitempty"`
	Status         string            `json:"status"`
	NodeID         string            `json:"nodeId,omitempty"`
	ContainerID    string            `json:"containerId,omitempty"`
	CreatedAt      time.Time         `json:"createdAt"`
	StartedAt      *time.Time        `json:"startedAt,omitempty"`
	FinishedAt     *time.Time        `json:"finishedAt,omitempty"`
	Error          string            `json:"error,omitempty"`
	LivenessProbe  *HealthCheck      `json:"livenessProbe,omitempty"`
	ReadinessProbe *HealthCheck      `json:"readinessProbe,omitempty"`
	RestartPolicy  string            `json:"restartPolicy,omitempty"`
	HealthStatus   string            `json:"healthStatus,omitempty"`
	Resources      Requirements      `json:"resources,omitempty"`
	Ports          []ContainerPort   `json:"ports,omitempty"`
	// SchedulingError is only set in the answer to a create, if no node can take the task now.
	SchedulingError string `json:"schedulingError,omitempty"`
}

// CreateTask is the body of POST /api/v1/tasks. Name and Image are required.
type CreateTask struct {
	Name           string            `json:"name"`
	Image          string            `json:"image"`
	Env            map[string]string `json:"env,omitempty"`
	LivenessProbe  *HealthCheck      `json:"livenessProbe,omitempty"`
	ReadinessProbe *HealthCheck      `json:"readinessProbe,omitempty"`
	RestartPolicy  string            `json:"restartPolicy,omitempty"`
	Ports          []ContainerPort   `json:"ports,omitempty"`
	Resources      Requirements      `json:"resources,omitempty"`
	// ScheduleTimeoutSeconds is how long the task may wait for a node before it fails: 300 if 0, unlimited if negative.
	ScheduleTimeoutSeconds int64 `json:"scheduleTimeoutSeconds,omitempty"`
}

// TaskStatus is the body of PUT /api/v1/tasks/{id}/status. Status is required: running, completed or failed.
type TaskStatus struct {
	Status       string `json:"status"`
	ContainerID  string `json:"containerId,omitempty"`
	Error        string `json:"error,omitempty"`
	HealthStatus string `json:"healthStatus,omitempty"`
	// Container is ContainerID in the spelling of the design.
	Container string `json:"container_id,omitempty"`
}

// Assign is the body with which a worker of the design is given a task: POST /api/v1/tasks. ID and Node are TaskID and
// NodeID in its spelling.
type Assign struct {
	Task
	ID   string `json:"task_id"`
	Node string `json:"node_id"`
}

// Execute is the body of a request that gives a task to a worker.
type Execute struct {
	Task Task `json:"task"`
}

// TaskLogs is the answer of GET /api/v1/tasks/{id}/logs.
type TaskLogs struct {
	TaskID string `json:"taskId"`
	Logs   string `json:"logs"`
	Tail   int    `json:"tail"`
}

// HealthCheck is a probe. Type is http, tcp or exec.
type HealthCheck struct {
	Type                string   `json:"type"`
	HTTPPath            string   `json:"httpPath,omitempty"`
	Port                int      `json:"port,omitempty"`
	Command             []string `json:"command,omitempty"`
	InitialDelaySeconds int      `json:"initialDelaySeconds,omitempty"`
	PeriodSeconds       int      `json:"periodSeconds,omitempty"`
	TimeoutSeconds      int      `json:"timeoutSeconds,omitempty"`
	SuccessThreshold    int      `json:"successThreshold,omitempty"`
	FailureThreshold    int      `json:"failureThreshold,omitempty"`
}

// Requirements are the requests and limits of a container.
type Requirements struct {
	Requests Resources `json:"requests,omitempty"`
	Limits   Resources `json:"limits,omitempty"`
}

// Resources are an amount of CPU in thousandths of a core, and of memory in bytes.
type Resources struct {
	CPU    int64 `json:"cpu,omitempty"`
	Memory int64 `json:"memory,omitempty"`
}

// ContainerPort is a port of a container. Protocol defaults to TCP.
type ContainerPort struct {
	Name          string `json:"name,omitempty"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"`
	HostPort      int    `json:"hostPort,omitempty"`
}
