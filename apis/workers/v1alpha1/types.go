package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Worker is a pool of pods that receive messages from one queue. Messages can be sent to its service or to one of its
// pods.
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

// WorkerList is a list of Workers.
//
// +kubebuilder:object:root=true
type WorkerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Worker `json:"items"`
}

// WorkerSpec is the desired state of a Worker.
type WorkerSpec struct {
	// Image is the container image. Required unless function is set.
	Image string `json:"image,omitempty"`
	// Function is a built-in function to run instead of an image: echo, calculator, forward or aggregate.
	Function Function `json:"function,omitempty"`
	// Command replaces the image's entrypoint. It must not be set with function.
	Command []string `json:"command,omitempty"`
	// Args replaces the image's command. It must not be set with function.
	Args []string `json:"args,omitempty"`
	// Env is added to the image's environment. Names must be unique. WORKER_FUNCTION, WORKER_PARAMETERS,
	// WORKER_CONCURRENCY, CORACLE_MESSAGES_API and AWS_LAMBDA_RUNTIME_API are reserved.
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Parameters are passed to the program as a JSON object of strings in the environment variable
	// WORKER_PARAMETERS. At most 64, and 16 KiB in total.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Resources are the resource requests and limits of each pod.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// ServiceAccountName is the service account of the pods. Its permissions apply when they send messages.
	// Defaults to "default".
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// PodLabels are added to the pods.
	PodLabels map[string]string `json:"podLabels,omitempty"`
	// Template is the rest of the pods: volumes, nodeSelector, tolerations, affinity, securityContext, sidecars and so
	// on. Its container "worker" is the program, and may have what this spec does not: volumeMounts, probes,
	// securityContext, envFrom. The pods have no restartPolicy but Always, and not the host's network.
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`

	// Replicas is the number of pods, 0 to 1000. Defaults to 1 unless scale is set.
	Replicas *int32 `json:"replicas,omitempty"`
	// Scale adapts the number of pods to the length of the queue.
	Scale *WorkerScale `json:"scale,omitempty"`

	// Mode is how messages reach the program. With Poll (the default), the program fetches each message over HTTP,
	// as from AWS Lambda's Runtime API. With Push, it receives CloudEvents over HTTP.
	Mode Mode `json:"mode,omitempty"`
	// Push configures mode Push.
	Push *WorkerPush `json:"push,omitempty"`
	// Concurrency is the number of messages, or of batches, that a pod handles at once, 1 to 1000. Defaults to 1.
	Concurrency int32 `json:"concurrency,omitempty"`
	// Batch gives the program several messages at once. With Poll they are AWS Lambda's event of an SQS queue, with Push
	// CloudEvents in the batched content mode. The program answers {"batchItemFailures": [{"itemIdentifier": "ID"}]} with
	// the messages that failed; an empty answer means that none has. It must not be set with function,
	// delivery.replies or delivery.repliesSubject.
	Batch *WorkerBatch `json:"batch,omitempty"`
	// QueueLimit is the maximum number of messages waiting in the queue, 1 to 100000. Further messages are rejected
	// with 429. The payloads are limited to 64 MiB. Defaults to 1000.
	QueueLimit int32 `json:"queueLimit,omitempty"`
	// TimeoutSeconds is how long the program may take for one message or batch, 1 to 3600. Defaults to 60.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// QueueSeconds is how long a message may wait in the queue for a program, 1 to 86400. After that it has failed, like
	// after maxAttempts. Defaults to 3600.
	QueueSeconds int32 `json:"queueSeconds,omitempty"`

	// Delivery is the delivery guarantee for accepted messages.
	Delivery WorkerDelivery `json:"delivery,omitempty"`

	// Triggers send messages to the worker. At most 16, with at most 64 KiB of data together.
	//
	// +listType=atomic
	Triggers []WorkerTrigger `json:"triggers,omitempty"`
}

// WorkerBatch bounds the batches of messages that a program gets.
type WorkerBatch struct {
	// Size is the maximum number of messages in a batch, 1 to 1000 and at most queueLimit. Defaults to 10. Together they
	// have at most 6 MiB as JSON.
	Size int32 `json:"size,omitempty"`
	// WindowSeconds is how long the first message waits for further ones while the batch is not full, 0 (default) to 300
	// and less than queueSeconds. It does not apply while a sender waits for a reply.
	WindowSeconds int32 `json:"windowSeconds,omitempty"`
}

// WorkerTrigger sends messages to the worker. Exactly one of schedule, objects and nats is set.
type WorkerTrigger struct {
	// Schedule sends a message at certain times: a cron expression with five fields, or @hourly, @daily, @weekly, @monthly
	// or @yearly.
	Schedule string `json:"schedule,omitempty"`
	// Objects sends the changes of Kubernetes objects.
	Objects *ObjectsTrigger `json:"objects,omitempty"`
	// TimeZone is the name of the schedule's time zone, such as Europe/Paris. Defaults to the server's time zone.
	TimeZone string `json:"timeZone,omitempty"`
	// Data is the message of a schedule. Defaults to a JSON object with the schedule and the scheduled time.
	Data string `json:"data,omitempty"`
	// StartingDeadlineSeconds is how late the message of a schedule may be sent, 1 to 86400. Of several missed times only
	// the latest counts. Defaults to 3600.
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
	// NATS sends the messages on a NATS subject.
	NATS *NATSTrigger `json:"nats,omitempty"`
}

// NATSTrigger sends the messages on a subject of the NATS servers in the server's option nats-context to the worker.
type NATSTrigger struct {
	// Subject may have wildcards: * stands for a token, a last > for one or more. The server's option nats-subjects
	// limits the subjects of a namespace; by default they begin with the namespace's name.
	Subject string `json:"subject"`
	// Stream is the JetStream stream with the subject's messages. They are read from its beginning, with a durable
	// consumer, and acknowledged once the worker's queue has accepted them. Without it, messages are lost while no server
	// is subscribed or the queue is full, and those with a reply subject (requests) get the worker's reply.
	Stream string `json:"stream,omitempty"`
}

// Function is a built-in function.
type Function string

// Built-in functions. Their pods run the image coracle/worker.
const (
	// FunctionEcho returns the message. If the parameter prefix is set, it is prepended with ": ".
	FunctionEcho Function = "echo"
	// FunctionCalculator computes a sum, product or average, such as {"operation": "sum", "operands": [1, 2, 3]}.
	FunctionCalculator Function = "calculator"
	// FunctionForward changes a text according to the parameter operation (uppercase, lowercase, reverse or none),
	// returns it, and sends it to the pod or service in the parameter forward_to.
	FunctionForward Function = "forward"
	// FunctionAggregate collects messages and reports every window_size (default 5) messages.
	FunctionAggregate Function = "aggregate"
)

// Mode is how messages reach the program.
type Mode string

// Modes of a worker.
const (
	ModePoll Mode = "Poll"
	ModePush Mode = "Push"
)

// WorkerScale is a range of replicas. Within it, there is one pod per targetDepth messages that are waiting or
// being handled.
type WorkerScale struct {
	// Min is the minimum number of pods, 0 to max.
	Min int32 `json:"min,omitempty"`
	// Max is the maximum number of pods, 1 to 1000.
	Max int32 `json:"max"`
	// TargetDepth is the desired number of messages per pod, 1 to 100000. Defaults to twice the concurrency, times
	// batch.size.
	TargetDepth int32 `json:"targetDepth,omitempty"`
	// IdleSeconds is how long fewer pods must suffice before pods are removed, 1 to 86400. Defaults to 60.
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
}

// WorkerPush is the endpoint of a program in mode Push.
type WorkerPush struct {
	// Port is the port of the container, 1 to 65535. Defaults to 8080.
	Port int32 `json:"port,omitempty"`
	// Path is the path of the requests. Defaults to "/".
	Path string `json:"path,omitempty"`
}

// Promise is a delivery guarantee for accepted messages.
type Promise string

// Delivery guarantees.
const (
	// AtMostOnce delivers a message to a program once or, after a failure, never. Failures are reported.
	AtMostOnce Promise = "AtMostOnce"
	// AtLeastOnce stores an accepted message on the server's disk and delivers it until a program responds without an
	// error or maxAttempts is reached.
	AtLeastOnce Promise = "AtLeastOnce"
)

// WorkerDelivery is the delivery guarantee for accepted messages.
type WorkerDelivery struct {
	// Promise is AtMostOnce (default) or AtLeastOnce.
	Promise Promise `json:"promise,omitempty"`
	// MaxAttempts is the maximum number of deliveries of a message to a program, 1 to 100. Only with AtLeastOnce.
	// Defaults to 5.
	MaxAttempts int32 `json:"maxAttempts,omitempty"`
	// DeadLetter is a worker in the same namespace that receives messages that failed maxAttempts times. Only with
	// AtLeastOnce. If it is unset or the worker does not exist, such messages stay in the queue as dead: 1000 of them or
	// 16 MiB, then the oldest are dropped.
	DeadLetter string `json:"deadLetter,omitempty"`
	// Replies is a worker in the same namespace that gets the replies to messages whose senders do not wait, as messages.
	// A message has failed if its reply cannot be queued. Empty replies are not sent.
	Replies string `json:"replies,omitempty"`
	// RepliesSubject is a NATS subject that gets them instead: acknowledged by the JetStream stream with the subject, if
	// there is one. A message has failed if its reply cannot be published. The server's option nats-subjects limits it.
	RepliesSubject string `json:"repliesSubject,omitempty"`
	// Store is where accepted messages are kept: Local (default) or NATS. Only with AtLeastOnce. It cannot be changed.
	Store Store `json:"store,omitempty"`
}

// Store is where a queue's accepted messages are kept.
type Store string

// Stores.
const (
	// StoreLocal is the disk of the server that keeps the queue.
	StoreLocal Store = "Local"
	// StoreNATS is a JetStream stream of the NATS servers in the server's option nats-context. Another server can keep the
	// queue when the server that kept it is lost.
	StoreNATS Store = "NATS"
)

// WorkerStatus is the observed state of a Worker.
type WorkerStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is the number of pods, and ReadyReplicas the number of ready pods.
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
	// DesiredReplicas is the current target number of pods.
	DesiredReplicas int32 `json:"desiredReplicas"`
	// Depth is the number of waiting messages, Delayed the number of messages that wait for the end of a delay or for
	// earlier messages with their key, InFlight the number of messages being handled, and Dead the number of failed
	// messages that are kept. They are at most half a second old.
	Depth    int32 `json:"depth"`
	Delayed  int32 `json:"delayed,omitempty"`
	InFlight int32 `json:"inFlight"`
	Dead     int32 `json:"dead,omitempty"`
	// LastMessageTime is about when a message last arrived, or a program last had one. It is kept for workers with scale.
	LastMessageTime *metav1.Time `json:"lastMessageTime,omitempty"`
	// QueueServer is the name of the server that keeps the queue.
	QueueServer string `json:"queueServer,omitempty"`
	// QueueFailure is why the queue takes no messages now that must be kept.
	QueueFailure string `json:"queueFailure,omitempty"`
	// Triggers are the states of spec.triggers, in the same order.
	//
	// +listType=atomic
	Triggers []TriggerStatus `json:"triggers,omitempty"`
	// LowSince is the time since which fewer pods would suffice.
	LowSince *metav1.Time `json:"lowSince,omitempty"`
	// Conditions has the condition Ready: a pod is ready, or none is needed; DeadLetter, if one is set: the worker
	// exists; Replies, if one is set: the worker exists; and Queue, with the store NATS: the stream can be written.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TriggerStatus is the state of a trigger.
type TriggerStatus struct {
	// Schedule, TimeZone and NATS are the trigger's.
	Schedule string       `json:"schedule,omitempty"`
	TimeZone string       `json:"timeZone,omitempty"`
	NATS     *NATSTrigger `json:"nats,omitempty"`
	// Objects is the state of a trigger with objects.
	Objects *ObjectsStatus `json:"objects,omitempty"`
	// Since is when the trigger began to count.
	Since metav1.Time `json:"since"`
	// LastScheduleTime is the latest time whose message was queued.
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// NextScheduleTime is the time of the next message.
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	// Failure is why the latest message was not queued, or why none can come.
	Failure string `json:"failure,omitempty"`
}

const (
	// ConditionReady is the type of the condition that is true if messages can be handled.
	ConditionReady = "Ready"
	// ConditionDeadLetter is the type of the condition that is false if the dead-letter worker does not exist.
	ConditionDeadLetter = "DeadLetter"
	// ConditionReplies is the type of the condition that is false if the worker that gets the replies does not exist.
	ConditionReplies = "Replies"
	// ConditionQueue is the type of the condition that is false if the queue's store cannot be written.
	ConditionQueue = "Queue"
)
