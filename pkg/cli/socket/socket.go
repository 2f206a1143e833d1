// Package socket implements the socket in the run directory over which the command line talks to the Coracle process of
// this machine: status, images, graceful shutdown. Only root can open it. Its invariant: the socket holds no state.
// Each response is computed on request.
package socket

import (
	"time"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Socket is the name of the socket in the run directory.
const Socket = "coracle.sock"

// Status is what `coracle status -o json` prints. Sizes are in bytes.
type Status struct {
	Running    bool       `json:"running"`
	Version    string     `json:"version"`
	PID        int        `json:"pid,omitempty"`
	StartedAt  *time.Time `json:"startedAt,omitempty"`
	Server     string     `json:"server,omitempty"` // URL of the API
	Node       string     `json:"node,omitempty"`
	NodeIP     string     `json:"nodeIP,omitempty"`
	DataDir    string     `json:"dataDir"`
	RunDir     string     `json:"runDir"`
	Kubeconfig string     `json:"kubeconfig,omitempty"`
	// command that prints, on this machine, the join command for another machine
	Join string `json:"join,omitempty"`
	// DiskFree and DiskSize are the free bytes and the size of the data directory's file system.
	DiskFree   int64       `json:"diskFreeBytes,omitempty"`
	DiskSize   int64       `json:"diskSizeBytes,omitempty"`
	Joined     []string    `json:"joined,omitempty"`     // nodes of other machines that depend on this server
	OtherNodes []string    `json:"otherNodes,omitempty"` // names, if this machine is a node
	Pressure   []string    `json:"pressure,omitempty"`   // resources that the node is short of
	Warnings   []string    `json:"warnings,omitempty"`   // problems that need attention
	Components []Component `json:"components"`
	// Health is set only if it was requested.
	Health    []Health  `json:"health,omitempty"`
	Processes []Process `json:"processes"`
}

// Component is a component of the process.
type Component struct {
	Name    string        `json:"name"`
	Ready   bool          `json:"ready"`
	Took    time.Duration `json:"tookNanoseconds"` // time from its start until it was ready
	Problem string        `json:"problem,omitempty"`
}

// Process is a process of Coracle on this machine.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"` // "coracle", or "shim" with the pod it serves
	PSS  int64  `json:"pssBytes"`
}

// Event is a progress report. The last one has Done or Error set. An empty one is a heartbeat, which clients drop.
type Event struct {
	Step    string          `json:"step,omitempty"`
	Message string          `json:"message,omitempty"`
	Took    time.Duration   `json:"tookNanoseconds,omitempty"`
	Bytes   int64           `json:"bytes,omitempty"`
	Total   int64           `json:"total,omitempty"`
	Images  []runtime.Image `json:"images,omitempty"`
	Status  *Status         `json:"status,omitempty"`
	// Authorities is the response to requests about CAs.
	Authorities *Authorities `json:"authorities,omitempty"`
	Encryption  *Encryption  `json:"encryption,omitempty"`
	Done        bool         `json:"done,omitempty"`
	Error       string       `json:"error,omitempty"`
}
