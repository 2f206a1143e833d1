// Package wire defines the JSON types of Podling's REST API for the facade (package rest), the command line (package
// podling) and external workers. Field names and status words are Podling's; Resource has the names of Kontrol's
// tables. Its invariant: it omits an empty field if Podling does.
package wire

// The status words of a task.
const (
	TaskPending   = "pending"
	TaskScheduled = "scheduled"
	TaskRunning   = "running"
	TaskCompleted = "completed"
	TaskFailed    = "failed"
)

// The status words of a pod.
const (
	PodPending   = "pending"
	PodScheduled = "scheduled"
	PodRunning   = "running"
	PodSucceeded = "succeeded"
	PodFailed    = "failed"
	PodUnknown   = "unknown"
)

// The status words of a container.
const (
	ContainerWaiting    = "waiting"
	ContainerRunning    = "running"
	ContainerTerminated = "terminated"
)

// The status words of a node.
const (
	NodeOnline  = "online"
	NodeOffline = "offline"
)

// The health of a container; unknown for containers without probes.
const (
	HealthHealthy   = "healthy"
	HealthUnhealthy = "unhealthy"
	HealthUnknown   = "unknown"
)

// Error is the body of every answer with a status of 400 or more.
type Error struct {
	Error string `json:"error"`
}

// Message is the body of answers that only have a message.
type Message struct {
	Message string `json:"message"`
}

// Health is the answer of /health.
type Health struct {
	Status  string `json:"status"`
	Service string `json:"service"`
	// AuthEnabled is "true" if requests need the token.
	AuthEnabled string `json:"authEnabled"`
}

// PruneResult counts what was removed.
type PruneResult struct {
	PodsRemoved     int `json:"podsRemoved"`
	NodesRemoved    int `json:"nodesRemoved"`
	ServicesRemoved int `json:"servicesRemoved"`
	TasksRemoved    int `json:"tasksRemoved"`
}
