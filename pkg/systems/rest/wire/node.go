package wire

import "time"

// Node is a machine that runs tasks. Its logs can be read at Hostname and Port.
type Node struct {
	NodeID        string         `json:"nodeId"`
	Hostname      string         `json:"hostname"`
	Port          int            `json:"port"`
	Status        string         `json:"status"`
	Capacity      int            `json:"capacity"`
	RunningTasks  int            `json:"runningTasks"`
	LastHeartbeat time.Time      `json:"lastHeartbeat"`
	Resources     *NodeResources `json:"resources"`
}

// NodeResources are what a node has, may give to tasks, and has given.
type NodeResources struct {
	Capacity    Resources `json:"capacity"`
	Allocatable Resources `json:"allocatable"`
	Used        Resources `json:"used"`
}

// RegisteredNode is the answer to POST /api/v1/nodes. ID is NodeID in the spelling of the design.
type RegisteredNode struct {
	Node
	ID string `json:"node_id"`
}

// RegisterNode is the body of POST /api/v1/nodes/register. Hostname and Port are required, and CPU and Memory, or
// Capacity. CPU is a number of cores such as "2", "0.5" or "500m"; Memory an amount such as "2Gi", "512M" or a number
// of bytes; Capacity the number of tasks at a time. Without Capacity that is one for each core and GiB; without CPU
// and Memory the worker has a core and a GiB for each task.
type RegisterNode struct {
	Hostname string `json:"hostname"`
	Port     int    `json:"port"`
	CPU      string `json:"cpu,omitempty"`
	Memory   string `json:"memory,omitempty"`
	Capacity int    `json:"capacity,omitempty"`
	// HeartbeatTimeoutSeconds is the silence after which the worker is offline and its tasks fail: 2 to 3600. Without
	// it, as from Podling's workers, it is 90.
	HeartbeatTimeoutSeconds int `json:"heartbeatTimeoutSeconds,omitempty"`
}

// Heartbeat is the body of POST /api/v1/heartbeat.
type Heartbeat struct {
	NodeID string `json:"nodeId"`
	// ID is NodeID under the name in Podling's design.
	ID string `json:"node_id,omitempty"`
	// Capacity replaces the capacity of the registration; 0 keeps it.
	Capacity int `json:"capacity,omitempty"`
	// RunningTasks is how many tasks the worker runs, from this cluster and elsewhere. Nil says nothing.
	RunningTasks *int `json:"running_tasks,omitempty"`
}
