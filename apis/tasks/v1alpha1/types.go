package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Task runs one container to completion, with retries, or an array of such
// containers.
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

// TaskSpec says what to run. It is immutable, except for suspend, cancel,
// ttlSecondsAfterFinished, and, before the task has ended, the timeouts,
// retries and array.parallelism.
type TaskSpec struct {
	// Image is the container image. Required.
	Image string `json:"image"`
	// Command replaces the image's entrypoint.
	Command []string `json:"command,omitempty"`
	// Args replace the image's command.
	Args []string `json:"args,omitempty"`
	// Env is added to the image's environment. Names are unique. The
	// variables TASK_NAME, TASK_ATTEMPT and, in an array, TASK_INDEX and
	// TASK_COUNT are set unless they are here.
	Env []corev1.EnvVar `json:"env,omitempty"`
	// WorkingDir replaces the image's working directory. An absolute path.
	WorkingDir string `json:"workingDir,omitempty"`
	// Resources are what the container requests and is limited to.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// Ports are published on the node where the task runs, at most 32. Not
	// for arrays with a parallelism above 1 on one node: two indexes cannot
	// have the same port of a node.
	Ports []TaskPort `json:"ports,omitempty"`
	// Volumes are ConfigMaps and Secrets to mount as files, at most 32.
	Volumes []TaskVolume `json:"volumes,omitempty"`

	// NodeName asks for one node; empty lets the scheduler choose.
	NodeName string `json:"nodeName,omitempty"`
	// NodeSelector are labels that the node must have.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations are the taints of nodes that do not matter to the task.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// PriorityClassName names the PriorityClass of its pods. Pods of a higher
	// priority are scheduled first. Empty: the default class.
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// Retries is how many further attempts follow a failed one, for each index
	// of an array: 0 to 100.
	Retries int32 `json:"retries,omitempty"`
	// BackoffSeconds is the pause before the first retry, 0 to 3600. It doubles
	// with each retry, up to 5 minutes or backoffSeconds, whichever is longer.
	// Default 1.
	BackoffSeconds *int32 `json:"backoffSeconds,omitempty"`
	// RunTimeoutSeconds limits each attempt, from the start of its container:
	// an attempt that runs longer is stopped and has failed. 1 to 31536000.
	RunTimeoutSeconds *int64 `json:"runTimeoutSeconds,omitempty"`
	// ScheduleTimeoutSeconds limits how long an attempt may wait for a node: the
	// task fails, without retries, if no node is feasible within it. 1 to
	// 31536000; unset waits forever.
	ScheduleTimeoutSeconds *int64 `json:"scheduleTimeoutSeconds,omitempty"`
	// StartTimeoutSeconds limits how long an attempt may wait for a container
	// that cannot be created, for example because its image cannot be pulled or
	// a ConfigMap is not there, from when its node was chosen. 1 to 31536000. Default 20.
	StartTimeoutSeconds *int64 `json:"startTimeoutSeconds,omitempty"`
	// StopTimeoutSeconds is how long a container that is stopped, because of a
	// timeout or a cancellation, has to end after SIGTERM; then it is killed. 1
	// to 3600. Default 30.
	StopTimeoutSeconds *int64 `json:"stopTimeoutSeconds,omitempty"`
	// TTLSecondsAfterFinished is the time after the end at which the task is
	// deleted, with its logs. 0 deletes it at once; unset keeps it.
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// IdempotencyKey identifies the request, at most 256 bytes: only one task in
	// a namespace has it, because the task's name is derived from it (key- and a
	// hash). Leave metadata.name empty and the server sets it.
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
	// Array runs the container once for each index. Unset: once.
	Array *TaskArray `json:"array,omitempty"`
	// Suspend starts no further attempt while it is true. Those that have
	// started go on.
	Suspend bool `json:"suspend,omitempty"`
	// Cancel stops the task, which fails with the reason Cancelled. It cannot
	// be withdrawn.
	Cancel bool `json:"cancel,omitempty"`
}

// TaskArray runs a container once for each index from 0 to size-1.
type TaskArray struct {
	// Size is the number of indexes, 1 to 10000.
	Size int32 `json:"size"`
	// Parallelism is the number of indexes under way at a time, 1 to 100; an
	// index that waits for its retry counts. Default 10.
	Parallelism *int32 `json:"parallelism,omitempty"`
}

// TaskPort publishes a port of the container on its node.
type TaskPort struct {
	// HostPort is the port of the node, 1 to 65535.
	HostPort int32 `json:"hostPort"`
	// ContainerPort is the port of the container, 1 to 65535.
	ContainerPort int32 `json:"containerPort"`
	// Protocol is TCP (the default), UDP or SCTP.
	Protocol corev1.Protocol `json:"protocol,omitempty"`
	// HostIP is the address of the node; empty means all.
	HostIP string `json:"hostIP,omitempty"`
}

// TaskVolume mounts a ConfigMap or a Secret, read-only. Exactly one is set.
type TaskVolume struct {
	// MountPath is where in the container. Unique.
	MountPath string `json:"mountPath"`
	// ConfigMap is the ConfigMap to mount.
	ConfigMap *corev1.ConfigMapVolumeSource `json:"configMap,omitempty"`
	// Secret is the Secret to mount.
	Secret *corev1.SecretVolumeSource `json:"secret,omitempty"`
}

// TaskPhase is where a task or an attempt is in its life. A task's phase moves
// back only with the next attempt, and a terminal one never changes.
type TaskPhase string

const (
	// TaskPending: no node was chosen yet.
	TaskPending TaskPhase = "Pending"
	// TaskScheduled: a node was chosen, its container does not run yet.
	TaskScheduled TaskPhase = "Scheduled"
	// TaskRunning: the container runs. In an array, at least one does.
	TaskRunning TaskPhase = "Running"
	// TaskCompleted: the container ended with exit code 0, in an array for
	// every index. Terminal.
	TaskCompleted TaskPhase = "Completed"
	// TaskFailed: status.reason and status.error say why. Terminal.
	TaskFailed TaskPhase = "Failed"
)

// Ended reports whether the phase is terminal.
func (p TaskPhase) Ended() bool { return p == TaskCompleted || p == TaskFailed }

// The reasons of failed tasks and attempts. Others come from the runtime and
// evictions, such as OOMKilled.
const (
	// ReasonError: the container ended with another exit code than 0.
	ReasonError = "Error"
	// ReasonNodeLost: the node was silent for too long, or was deleted.
	ReasonNodeLost = "NodeLost"
	// ReasonRunTimeout: it ran longer than runTimeoutSeconds.
	ReasonRunTimeout = "RunTimeout"
	// ReasonNoNode: no feasible node within scheduleTimeoutSeconds.
	ReasonNoNode = "NoNode"
	// ReasonNotPrepared: the network or the volumes of the container could not
	// be made within startTimeoutSeconds, such as for a ConfigMap that is not
	// there or a port of the node that is taken.
	ReasonNotPrepared = "NotPrepared"
	// ReasonPodDeleted: a client deleted the pod.
	ReasonPodDeleted = "PodDeleted"
	// ReasonRejected: the API server refused the pod, such as for a quota.
	ReasonRejected = "Rejected"
	// ReasonCancelled: spec.cancel.
	ReasonCancelled = "Cancelled"
	// ReasonIndexesFailed: indexes of the array failed.
	ReasonIndexesFailed = "IndexesFailed"
)

// TaskStatus is what became of the task. Except for arrays, node, podName,
// containerID, exitCode, scheduledAt and startedAt describe the last attempt.
type TaskStatus struct {
	// Phase is Pending, Scheduled, Running, and then Completed or Failed.
	Phase TaskPhase `json:"phase,omitempty"`
	// Node is the node it was scheduled to.
	Node string `json:"node,omitempty"`
	// PodName is the pod that runs it, in the task's namespace. The pod is
	// deleted once the attempt has ended and is recorded.
	PodName string `json:"podName,omitempty"`
	// ContainerID is the runtime's, such as "containerd://4f1...".
	ContainerID string `json:"containerID,omitempty"`
	// ExitCode is set once the container ended.
	ExitCode *int32 `json:"exitCode,omitempty"`

	// CreatedAt is when the task was accepted.
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
	// ScheduledAt is when a node was chosen.
	ScheduledAt *metav1.Time `json:"scheduledAt,omitempty"`
	// StartedAt is when its container began to run.
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// FinishedAt is when the task ended.
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`

	// Reason is why the task failed, in one word, such as Error, NodeLost,
	// RunTimeout, NoNode, NotPrepared, PodDeleted, Rejected, Cancelled, IndexesFailed,
	// OOMKilled or Evicted.
	Reason string `json:"reason,omitempty"`
	// Error says why the task failed, or what it waits for.
	Error string `json:"error,omitempty"`

	// Attempts are the last 20 attempts that have ended, in the order of their
	// ends, followed by those that have not.
	Attempts []TaskAttempt `json:"attempts,omitempty"`
	// EndedAttempts counts all attempts that have ended. It never decreases.
	EndedAttempts int32 `json:"endedAttempts,omitempty"`
	// Array is the progress of an array.
	Array *TaskArrayStatus `json:"array,omitempty"`
}

// TaskAttempt is one attempt to run the container.
type TaskAttempt struct {
	// Number counts the attempts of the index, from 1.
	Number int32 `json:"number"`
	// Index is the index in an array.
	Index *int32 `json:"index,omitempty"`
	// Phase is Pending, Scheduled, Running, Completed or Failed.
	Phase TaskPhase `json:"phase"`
	// Pod is the name of its pod, and PodUID its identity: no other pod can
	// report for this attempt.
	Pod    string    `json:"pod,omitempty"`
	PodUID types.UID `json:"podUID,omitempty"`
	// Node is the node it was scheduled to.
	Node string `json:"node,omitempty"`
	// ContainerID is the runtime's.
	ContainerID string `json:"containerID,omitempty"`
	// ExitCode is set once the container ended.
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Reason is why it failed, in one word.
	Reason string `json:"reason,omitempty"`
	// Message is why it failed, or what it waits for, at most 1024 bytes.
	Message string `json:"message,omitempty"`

	// NotBefore is when a retry may begin.
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// CreatedAt is when its pod was created, ScheduledAt when a node was
	// chosen, StartedAt when the container began to run, FinishedAt when the
	// attempt ended.
	CreatedAt   *metav1.Time `json:"createdAt,omitempty"`
	ScheduledAt *metav1.Time `json:"scheduledAt,omitempty"`
	StartedAt   *metav1.Time `json:"startedAt,omitempty"`
	FinishedAt  *metav1.Time `json:"finishedAt,omitempty"`
}

// TaskArrayStatus is the progress of an array. Each index is in one of the
// counts.
type TaskArrayStatus struct {
	// Pending indexes have no running container, Running ones have.
	Pending int32 `json:"pending"`
	Running int32 `json:"running"`
	// Completed and Failed indexes have ended.
	Completed int32 `json:"completed"`
	Failed    int32 `json:"failed"`
	// CompletedIndexes and FailedIndexes list them, such as "0-3,7".
	CompletedIndexes string `json:"completedIndexes,omitempty"`
	FailedIndexes    string `json:"failedIndexes,omitempty"`
	// Nodes are those on which attempts have ended, at most 100: they keep the
	// output of attempts that are not listed any more.
	Nodes []string `json:"nodes,omitempty"`
}
