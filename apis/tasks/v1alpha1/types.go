package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Task is one container that runs once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Task struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what to run.
	Spec TaskSpec `json:"spec"`
	// Status is what became of it.
	Status TaskStatus `json:"status,omitempty"`
}

// TaskList is a list of tasks.
//
// +kubebuilder:object:root=true
type TaskList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Task `json:"items"`
}

// TaskSpec says what to run. All of it is immutable, except timeoutSeconds
// while the task has not ended.
type TaskSpec struct {
	// Image is the container image. Required.
	Image string `json:"image"`
	// Command replaces the image's entrypoint.
	Command []string `json:"command,omitempty"`
	// Args replace the image's command.
	Args []string `json:"args,omitempty"`
	// Env is added to the image's environment. Names are unique.
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Resources are what the container asks for and is limited to.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// NodeName asks for one node; empty lets the scheduler choose.
	NodeName string `json:"nodeName,omitempty"`
	// TimeoutSeconds is how long the task may be Pending, in seconds from its
	// creation: if no node took it by then, it fails. At least 1; unset waits forever.
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
}

// TaskPhase is where a task is in its life. It never moves back.
type TaskPhase string

const (
	// TaskPending: created, no node chosen yet.
	TaskPending TaskPhase = "Pending"
	// TaskScheduled: a node was chosen, its container does not run yet.
	TaskScheduled TaskPhase = "Scheduled"
	// TaskRunning: the container runs.
	TaskRunning TaskPhase = "Running"
	// TaskCompleted: the container ended with exit code 0. Terminal.
	TaskCompleted TaskPhase = "Completed"
	// TaskFailed: status.error says why. Terminal.
	TaskFailed TaskPhase = "Failed"
)

// Ended tells whether the phase is terminal.
func (p TaskPhase) Ended() bool { return p == TaskCompleted || p == TaskFailed }

// TaskStatus is what became of the task.
type TaskStatus struct {
	// Phase is Pending, Scheduled, Running, and then Completed or Failed.
	Phase TaskPhase `json:"phase,omitempty"`
	// Node is the node it was scheduled to.
	Node string `json:"node,omitempty"`
	// PodName is the pod that carries it, in the task's namespace.
	PodName string `json:"podName,omitempty"`
	// ContainerID is the runtime's, such as "containerd://4f1...".
	ContainerID string `json:"containerID,omitempty"`
	// ExitCode is set once the container ended.
	ExitCode *int32 `json:"exitCode,omitempty"`

	// CreatedAt is when the task was accepted.
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
	// StartedAt is when its container began to run.
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// FinishedAt is when it ended.
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`

	// Error says why the task failed.
	Error string `json:"error,omitempty"`
}
