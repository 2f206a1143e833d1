package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Task runs a container to completion, with retries, or an array of such containers.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Task struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec TaskSpec `json:"spec"`
	// Status is the observed state.
	Status TaskStatus `json:"status,omitempty"`
}

// TaskList is a list of Tasks.
//
// +kubebuilder:object:root=true
type TaskList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Task `json:"items"`
}

// TaskSpec is the desired state of a Task. It is immutable, except for suspend, cancel and ttlSecondsAfterFinished
// and, until the task has finished, retries, backoffSeconds, runTimeoutSeconds, scheduleTimeoutSeconds,
// startTimeoutSeconds and array.parallelism.
type TaskSpec struct {
	// Image is the container image. Required.
	Image string `json:"image"`
	// Command replaces the image's entrypoint.
	Command []string `json:"command,omitempty"`
	// Args replaces the image's command.
	Args []string `json:"args,omitempty"`
	// Env is added to the image's environment. Names must be unique. TASK_NAME, TASK_ATTEMPT and, in an array,
	// TASK_INDEX and TASK_COUNT are set unless they are listed here.
	Env []corev1.EnvVar `json:"env,omitempty"`
	// WorkingDir replaces the image's working directory. It must be an absolute path.
	WorkingDir string `json:"workingDir,omitempty"`
	// Resources are the container's resource requests and limits.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// Ports are ports of the container to publish on its node, at most 32. Two indexes of an array cannot use the
	// same port of a node at the same time.
	Ports []TaskPort `json:"ports,omitempty"`
	// Volumes are mounted into the container, at most 32.
	Volumes []TaskVolume `json:"volumes,omitempty"`
	// OutputPath is a directory of the container whose files are kept with the log after the attempt has ended, up to
	// 64 MiB and 10,000 files. It must be an absolute path.
	OutputPath string `json:"outputPath,omitempty"`
	// InitContainers run one after the other before the container, as in a pod, at most 16. Those with
	// restartPolicy: Always are sidecars: they run beside the container and are stopped when it ends. The container's
	// own name is "task".
	InitContainers []corev1.Container `json:"initContainers,omitempty"`
	// ServiceAccountName is the ServiceAccount whose token the containers get. If empty, they get none.
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// NodeName is the node to run on. If empty, the scheduler chooses a node.
	NodeName string `json:"nodeName,omitempty"`
	// NodeSelector are the labels that the node must have.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations are the node taints that the task tolerates.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// PriorityClassName is the PriorityClass of the pods. The scheduler places pods of higher priority first. If
	// empty, the default class is used.
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// Retries is the number of further attempts after a failed one, 0 to 100. In an array it applies to each index.
	Retries int32 `json:"retries,omitempty"`
	// BackoffSeconds is the delay before the first retry, 0 to 3600. It doubles with each retry, up to 5 minutes or
	// backoffSeconds, whichever is longer. Defaults to 1.
	BackoffSeconds *int32 `json:"backoffSeconds,omitempty"`
	// RunTimeoutSeconds is the maximum run time of an attempt, from the start of its container, 1 to 31536000. An
	// attempt that runs longer is stopped and fails. If unset, the time is not limited.
	RunTimeoutSeconds *int64 `json:"runTimeoutSeconds,omitempty"`
	// ScheduleTimeoutSeconds is how long an attempt may wait for a feasible node, 1 to 31536000. After that the
	// task fails without retries. If unset, the time is not limited.
	ScheduleTimeoutSeconds *int64 `json:"scheduleTimeoutSeconds,omitempty"`
	// StartTimeoutSeconds is how long an attempt may wait, after its node was chosen, for a container that cannot
	// be created, for example because its image cannot be pulled or a ConfigMap is missing. 1 to 31536000. Defaults
	// to 20.
	StartTimeoutSeconds *int64 `json:"startTimeoutSeconds,omitempty"`
	// StopTimeoutSeconds is the time between SIGTERM and SIGKILL when a container is stopped because of a timeout
	// or a cancellation, 1 to 3600. Defaults to 30.
	StopTimeoutSeconds *int64 `json:"stopTimeoutSeconds,omitempty"`
	// TTLSecondsAfterFinished is the time after which a finished task and its logs are deleted. 0 deletes the task
	// at once. If unset, the task is kept.
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// After lists tasks of the namespace that must end before this one starts, at most 32. A task that does not exist
	// yet is waited for. Nothing is passed between the tasks.
	After []TaskAfter `json:"after,omitempty"`
	// IdempotencyKey identifies the request, at most 256 bytes. At most one task in a namespace has a given key,
	// because the task's name is derived from it ("key-" and a hash). Leave metadata.name empty: the server sets
	// it.
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
	// Array runs the container once for each index. If unset, the container runs once.
	Array *TaskArray `json:"array,omitempty"`
	// Suspend prevents further attempts from starting while it is true. Running attempts continue.
	Suspend bool `json:"suspend,omitempty"`
	// Cancel stops the task, which then fails with the reason Cancelled. It cannot be undone.
	Cancel bool `json:"cancel,omitempty"`
}

// AfterCondition is how a task must have ended.
type AfterCondition string

const (
	// AfterSucceeded means that the task completed. It is the default.
	AfterSucceeded AfterCondition = "Succeeded"
	// AfterFailed means that the task failed.
	AfterFailed AfterCondition = "Failed"
	// AfterEnded means that the task completed or failed.
	AfterEnded AfterCondition = "Ended"
)

// TaskAfter is a task that must end first.
type TaskAfter struct {
	// Name is the name of the task.
	Name string `json:"name"`
	// Condition is Succeeded (the default), Failed or Ended. If the task ends in another way, this task fails with the
	// reason AfterFailed and does not start.
	Condition AfterCondition `json:"condition,omitempty"`
}

// TaskArray runs a container once for each index from 0 to size-1, or once on each node.
type TaskArray struct {
	// Size is the number of indexes, 1 to 10000. It must not be set with everyNode.
	Size int32 `json:"size,omitempty"`
	// EveryNode runs one index on each node that exists when the task starts, has the labels of nodeSelector and no
	// NoSchedule or NoExecute taint that the task does not tolerate, at most 1000. status.array.targets lists them.
	EveryNode bool `json:"everyNode,omitempty"`
	// Parallelism is the maximum number of indexes in progress at a time, 1 to 100. An index that waits for a retry
	// counts. Defaults to 10.
	Parallelism *int32 `json:"parallelism,omitempty"`
}

// TaskPort publishes a port of the container on its node.
type TaskPort struct {
	// HostPort is the port on the node, 1 to 65535.
	HostPort int32 `json:"hostPort"`
	// ContainerPort is the port of the container, 1 to 65535.
	ContainerPort int32 `json:"containerPort"`
	// Protocol is TCP (the default), UDP or SCTP.
	Protocol corev1.Protocol `json:"protocol,omitempty"`
	// HostIP is the node address to bind. If empty, all addresses are used.
	HostIP string `json:"hostIP,omitempty"`
}

// TaskVolume mounts a volume. Exactly one source must be set.
type TaskVolume struct {
	// Name is the name with which initContainers mount the volume. Defaults to "volume-" and its position in the list.
	Name string `json:"name,omitempty"`
	// MountPath is the path in the container. It must be unique.
	MountPath string `json:"mountPath"`
	// SubPath is the path in the volume to mount in place of its root.
	SubPath string `json:"subPath,omitempty"`
	// ReadOnly mounts the volume read-only. ConfigMaps and Secrets always are.
	ReadOnly bool `json:"readOnly,omitempty"`
	// ConfigMap is the ConfigMap to mount.
	ConfigMap *corev1.ConfigMapVolumeSource `json:"configMap,omitempty"`
	// Secret is the Secret to mount.
	Secret *corev1.SecretVolumeSource `json:"secret,omitempty"`
	// EmptyDir is a directory that exists as long as the attempt.
	EmptyDir *corev1.EmptyDirVolumeSource `json:"emptyDir,omitempty"`
	// PersistentVolumeClaim is the claim to mount.
	PersistentVolumeClaim *corev1.PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
	// HostPath is the file or directory of the node to mount.
	HostPath *corev1.HostPathVolumeSource `json:"hostPath,omitempty"`
}

// TaskPhase is the phase of a task or an attempt. A task's phase moves back only when a new attempt begins, and a
// terminal phase never changes.
type TaskPhase string

const (
	// TaskPending means that no node has been chosen.
	TaskPending TaskPhase = "Pending"
	// TaskScheduled means that a node has been chosen and the container does not run yet.
	TaskScheduled TaskPhase = "Scheduled"
	// TaskRunning means that the container runs or, in an array, at least one does.
	TaskRunning TaskPhase = "Running"
	// TaskCompleted means that the container exited with code 0, in an array for every index. Terminal.
	TaskCompleted TaskPhase = "Completed"
	// TaskFailed means that the task failed; see status.reason and status.error. Terminal.
	TaskFailed TaskPhase = "Failed"
)

// Ended reports whether the phase is terminal.
func (p TaskPhase) Ended() bool { return p == TaskCompleted || p == TaskFailed }

// Reasons of failed tasks and attempts. Further reasons come from the runtime and from evictions, such as
// OOMKilled.
const (
	// ReasonError means that the container exited with a non-zero code.
	ReasonError = "Error"
	// ReasonNodeLost means that the node sent no heartbeat for too long, or was deleted.
	ReasonNodeLost = "NodeLost"
	// ReasonRunTimeout means that the attempt ran longer than runTimeoutSeconds.
	ReasonRunTimeout = "RunTimeout"
	// ReasonNoNode means that no node was feasible within scheduleTimeoutSeconds.
	ReasonNoNode = "NoNode"
	// ReasonNotPrepared means that the container's network or volumes could not be set up within
	// startTimeoutSeconds, for example because a ConfigMap is missing or a port of the node is in use.
	ReasonNotPrepared = "NotPrepared"
	// ReasonPodDeleted means that a client deleted the pod.
	ReasonPodDeleted = "PodDeleted"
	// ReasonRejected means that the API server rejected the pod, for example because of an admission policy. An attempt
	// beyond a quota waits instead.
	ReasonRejected = "Rejected"
	// ReasonCancelled means that spec.cancel was set.
	ReasonCancelled = "Cancelled"
	// ReasonAfterFailed means that a task in spec.after ended otherwise than required.
	ReasonAfterFailed = "AfterFailed"
	// ReasonTooManyNodes means that an array with everyNode matches more than 1000 nodes.
	ReasonTooManyNodes = "TooManyNodes"
	// ReasonIndexesFailed means that indexes of the array failed.
	ReasonIndexesFailed = "IndexesFailed"
)

// TaskStatus is the observed state of a Task. Except in arrays, node, podName, containerID, exitCode, scheduledAt
// and startedAt describe the last attempt.
type TaskStatus struct {
	// Phase is Pending, Scheduled, Running, and then Completed or Failed.
	Phase TaskPhase `json:"phase,omitempty"`
	// Node is the node that the task was scheduled to.
	Node string `json:"node,omitempty"`
	// PodName is the pod that runs the task, in the task's namespace. The pod is deleted once the attempt has ended
	// and its result is recorded.
	PodName string `json:"podName,omitempty"`
	// ContainerID is the container's ID in the runtime, such as "containerd://4f1...".
	ContainerID string `json:"containerID,omitempty"`
	// ExitCode is the container's exit code. It is set once the container has exited.
	ExitCode *int32 `json:"exitCode,omitempty"`

	// CreatedAt is when the task was accepted.
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
	// ScheduledAt is when a node was chosen.
	ScheduledAt *metav1.Time `json:"scheduledAt,omitempty"`
	// StartedAt is when the container started.
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// FinishedAt is when the task completed or failed.
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`

	// Reason is a one-word reason for the failure, such as Error, NodeLost, RunTimeout, NoNode, NotPrepared,
	// PodDeleted, Rejected, Cancelled, AfterFailed, IndexesFailed, OOMKilled or Evicted.
	Reason string `json:"reason,omitempty"`
	// Error describes why the task failed, or what it is waiting for.
	Error string `json:"error,omitempty"`

	// Attempts lists the last 20 attempts that have ended and, of those before, the last 20 attempts of failed indexes,
	// in the order in which they ended, and then the attempts in progress.
	Attempts []TaskAttempt `json:"attempts,omitempty"`
	// EndedAttempts is the number of all attempts that have ended. It never decreases.
	EndedAttempts int32 `json:"endedAttempts,omitempty"`
	// After lists the tasks of spec.after that have ended as required.
	After []string `json:"after,omitempty"`
	// Array is the progress of an array.
	Array *TaskArrayStatus `json:"array,omitempty"`
}

// TaskAttempt is one attempt to run the container.
type TaskAttempt struct {
	// Number is the number of the attempt for its index, from 1.
	Number int32 `json:"number"`
	// Index is the attempt's index in an array.
	Index *int32 `json:"index,omitempty"`
	// Phase is Pending, Scheduled, Running, Completed or Failed.
	Phase TaskPhase `json:"phase"`
	// Pod and PodUID are the name and UID of the attempt's pod. Reports of other pods are ignored.
	Pod    string    `json:"pod,omitempty"`
	PodUID types.UID `json:"podUID,omitempty"`
	// Node is the node that the attempt was scheduled to.
	Node string `json:"node,omitempty"`
	// ContainerID is the container's ID in the runtime.
	ContainerID string `json:"containerID,omitempty"`
	// ExitCode is the container's exit code. It is set once the container has exited.
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Usage is what the attempt's containers have used. It is not known if the node was lost or its agent restarted
	// during the attempt.
	Usage *TaskUsage `json:"usage,omitempty"`

	// Reason is a one-word reason for the failure.
	Reason string `json:"reason,omitempty"`
	// Message describes why the attempt failed, or what it is waiting for, in at most 1024 bytes.
	Message string `json:"message,omitempty"`

	// NotBefore is the earliest time at which a retry may start.
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// CreatedAt is when the pod was created, ScheduledAt when a node was chosen, StartedAt when the container
	// started, and FinishedAt when the attempt ended.
	CreatedAt   *metav1.Time `json:"createdAt,omitempty"`
	ScheduledAt *metav1.Time `json:"scheduledAt,omitempty"`
	StartedAt   *metav1.Time `json:"startedAt,omitempty"`
	FinishedAt  *metav1.Time `json:"finishedAt,omitempty"`
}

// TaskUsage is the resource usage of an attempt, of all its containers together.
type TaskUsage struct {
	// PeakMemoryBytes is the most memory in use at a time, with the page cache.
	PeakMemoryBytes int64 `json:"peakMemoryBytes"`
	// CPUMilliseconds is the processor time.
	CPUMilliseconds int64 `json:"cpuMilliseconds"`
}

// TaskArrayStatus is the progress of an array. Each index is in exactly one of the counts.
type TaskArrayStatus struct {
	// Pending is the number of unfinished indexes without a running container. Running is the number of indexes
	// with one.
	Pending int32 `json:"pending"`
	Running int32 `json:"running"`
	// Completed and Failed are the numbers of finished indexes.
	Completed int32 `json:"completed"`
	Failed    int32 `json:"failed"`
	// CompletedIndexes and FailedIndexes list these indexes, such as "0-3,7".
	CompletedIndexes string `json:"completedIndexes,omitempty"`
	FailedIndexes    string `json:"failedIndexes,omitempty"`
	// Nodes lists nodes on which attempts have ended, at most 100. They keep the logs of attempts that are no
	// longer listed.
	Nodes []string `json:"nodes,omitempty"`
	// Targets lists the nodes of an array with everyNode: index 0 runs on the first.
	Targets []string `json:"targets,omitempty"`
}

// Size returns the number of indexes: 1 without an array, 0 before the nodes of an array with everyNode are known.
func (t *Task) Size() int32 {
	switch a := t.Spec.Array; {
	case a == nil:
		return 1
	case !a.EveryNode:
		return a.Size
	case t.Status.Array != nil:
		return int32(len(t.Status.Array.Targets))
	}
	return 0
}
