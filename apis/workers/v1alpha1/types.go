package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Worker is a pool of pods that take messages from queues. Messages are sent to
// its service, or to one of its pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Worker struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec WorkerSpec `json:"spec"`
	// Status is the observed state.
	Status WorkerStatus `json:"status,omitempty"`
}

// WorkerList is a list of workers.
//
// +kubebuilder:object:root=true
type WorkerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Worker `json:"items"`
}

// WorkerSpec is what handles the messages, how many at once, and what is
// promised to senders.
type WorkerSpec struct {
	// Image is the container image. Required, unless function is set.
	Image string `json:"image,omitempty"`
	// Function is a built-in function, in place of an image: echo, calculator,
	// forward or aggregate.
	Function Function `json:"function,omitempty"`
	// Command replaces the image's entrypoint. Not with function.
	Command []string `json:"command,omitempty"`
	// Args replace the image's command. Not with function.
	Args []string `json:"args,omitempty"`
	// Env is added to the image's environment. Names are unique. WORKER_FUNCTION,
	// WORKER_PARAMETERS, WORKER_CONCURRENCY, CORACLE_MESSAGES_API and
	// AWS_LAMBDA_RUNTIME_API are reserved.
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Parameters of the function. The program finds them in the environment
	// variable WORKER_PARAMETERS, as a JSON object of strings. At most 64, and
	// 16 KiB together.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Resources are what each pod requests and is limited to.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// ServiceAccountName is the service account of the pods, by whose permissions
	// they send messages. Default "default".
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// PodLabels are added to the pods.
	PodLabels map[string]string `json:"podLabels,omitempty"`

	// Replicas is the number of pods, 0 to 1000. Default 1, unless scale is set.
	Replicas *int32 `json:"replicas,omitempty"`
	// Scale makes the number of pods follow the length of the queues.
	Scale *WorkerScale `json:"scale,omitempty"`

	// Mode is how messages reach the program: Poll (default; it asks for the next
	// one over HTTP, as AWS Lambda's Runtime API) or Push (it is sent CloudEvents over HTTP).
	Mode Mode `json:"mode,omitempty"`
	// Push configures mode Push.
	Push *WorkerPush `json:"push,omitempty"`
	// Concurrency is how many messages a pod handles at once, 1 to 1000. Default 1.
	Concurrency int32 `json:"concurrency,omitempty"`
	// QueueLimit is how many messages may wait at a pod, 1 to 100000; more are
	// refused with 429. Default 1000. Their payloads may take 32 MiB at a pod.
	QueueLimit int32 `json:"queueLimit,omitempty"`
	// TimeoutSeconds is how long the program may take for one message, 1 to 3600. Default 60.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// QueueSeconds is how long a message may wait in a queue, 1 to 86400. Default 3600.
	QueueSeconds int32 `json:"queueSeconds,omitempty"`
	// StartSeconds is how long a message to the service waits for a first ready
	// pod while the worker starts, 0 to 300. Default 30.
	StartSeconds *int32 `json:"startSeconds,omitempty"`

	// Delivery is what is promised for messages that were accepted.
	Delivery WorkerDelivery `json:"delivery,omitempty"`
}

// Function is a built-in function.
type Function string

// The built-in functions. A pod of one of them runs the image coracle/worker.
const (
	// FunctionEcho returns the message, after the parameter prefix and ": ", if there is one.
	FunctionEcho Function = "echo"
	// FunctionCalculator computes {"operation": "sum", "operands": [1, 2, 3]}: sum, product or average.
	FunctionCalculator Function = "calculator"
	// FunctionForward changes a text by the parameter operation (uppercase,
	// lowercase, reverse or none), returns it, and sends it to the pod or service
	// named by the parameter forward_to.
	FunctionForward Function = "forward"
	// FunctionAggregate collects messages and reports each window_size (default 5) of them.
	FunctionAggregate Function = "aggregate"
)

// Mode is how messages reach the program.
type Mode string

// The modes.
const (
	ModePoll Mode = "Poll"
	ModePush Mode = "Push"
)

// WorkerScale is a range of replicas. Between its bounds there is one pod for
// every targetDepth messages that wait or are handled.
type WorkerScale struct {
	// Min is the least number of pods, 0 to max.
	Min int32 `json:"min,omitempty"`
	// Max is the greatest number of pods, 1 to 1000.
	Max int32 `json:"max"`
	// TargetDepth is how many messages one pod should have, 1 to 100000. Default
	// twice the concurrency.
	TargetDepth int32 `json:"targetDepth,omitempty"`
	// IdleSeconds is how long there must be less to do before pods are removed, 1 to 86400. Default 60.
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
}

// WorkerPush is where a program in mode Push listens.
type WorkerPush struct {
	// Port of the container, 1 to 65535. Default 8080.
	Port int32 `json:"port,omitempty"`
	// Path of the requests. Default "/".
	Path string `json:"path,omitempty"`
}

// Promise is what is promised for accepted messages.
type Promise string

// The promises.
const (
	// AtMostOnce: a message is given to a program once or, if something fails, never. Failures are reported.
	AtMostOnce Promise = "AtMostOnce"
	// AtLeastOnce: an accepted message is on the node's disk, and is given to
	// programs until one answers, or maxAttempts is reached.
	AtLeastOnce Promise = "AtLeastOnce"
)

// WorkerDelivery is what is promised for accepted messages.
type WorkerDelivery struct {
	// Promise is AtMostOnce (default) or AtLeastOnce.
	Promise Promise `json:"promise,omitempty"`
	// MaxAttempts is how often a message is given to a program, 1 to 100, with
	// AtLeastOnce only. Default 5.
	MaxAttempts int32 `json:"maxAttempts,omitempty"`
	// DeadLetter is a worker of the same namespace that receives the messages
	// that failed maxAttempts times, with AtLeastOnce only. Without it they are
	// dropped with an event.
	DeadLetter string `json:"deadLetter,omitempty"`
}

// WorkerStatus is the observed state. Its counts are of the running pods, as
// last reported by their nodes, which do so at most once a second.
type WorkerStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is the number of pods, ReadyReplicas of those that are ready.
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
	// DesiredReplicas is the number of pods asked for at present.
	DesiredReplicas int32 `json:"desiredReplicas"`
	// Depth is how many messages wait, InFlight how many are handled.
	Depth    int32 `json:"depth"`
	InFlight int32 `json:"inFlight"`
	// WakeTime is when the last message arrived while there was no ready pod.
	WakeTime *metav1.MicroTime `json:"wakeTime,omitempty"`
	// LowSince is since when fewer pods would do.
	LowSince *metav1.Time `json:"lowSince,omitempty"`
	// Conditions are Ready: there is a ready pod, or none is needed.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionReady is the type of the condition that says whether messages are handled.
const ConditionReady = "Ready"
