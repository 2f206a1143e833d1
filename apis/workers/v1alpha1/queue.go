package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
)

const (
	// LabelWorker is the label of a worker's pods. Its value is the worker's name.
	LabelWorker = "workers.coracle.dev/worker"
	// AnnotationQueue is the annotation of pods that receive messages. Its value is a Queue in JSON. The first
	// container receives the messages.
	AnnotationQueue = "workers.coracle.dev/queue"
	// RuntimeAddress is the address of the agent for a pod in mode Poll. It is in the pod's network namespace, so
	// nothing outside of the pod can reach it.
	RuntimeAddress = "127.0.0.1:9001"
	// RuntimeEnv is the environment variable with RuntimeAddress in mode Poll, as in AWS Lambda.
	RuntimeEnv = "AWS_LAMBDA_RUNTIME_API"
	// MessagesEnv is the environment variable with RuntimeAddress in both modes, for sending messages.
	MessagesEnv = "CORACLE_MESSAGES_API"
	// ConcurrencyEnv is the environment variable with the number of messages that the program may handle at once.
	ConcurrencyEnv = "WORKER_CONCURRENCY"
	// ParametersEnv is the environment variable with the parameters.
	ParametersEnv = "WORKER_PARAMETERS"
	// FunctionEnv is the environment variable with the name of the built-in function.
	FunctionEnv = "WORKER_FUNCTION"

	// MaxPayload is the maximum size of a message and of a reply, in bytes.
	MaxPayload = 1 << 20
	// MaxCall is the maximum size of the messages in a batch for a program, as JSON and in bytes. A message that alone has
	// more is a batch. MaxDelivery bounds a batch with such a message.
	MaxCall     = 6 << 20
	MaxDelivery = 7 << 20
	// MaxDedupID is the maximum length of a sender's ID of a message, in bytes.
	MaxDedupID = 256
	// MaxOrderKey is the maximum length of a message's key, in bytes.
	MaxOrderKey = 256
)

// HTTP headers of messages between sender, API server, agent and program.
const (
	// HeaderWait is "true" if the sender waits for the reply.
	HeaderWait = "Coracle-Wait"
	// HeaderTimeout is how long the sender waits for the reply, as a Go duration.
	HeaderTimeout = "Coracle-Timeout"
	// HeaderID is the ID of a message.
	HeaderID = "Coracle-Message-Id"
	// HeaderDedupID is the sender's ID of a message. Another message with it is not queued for five minutes.
	HeaderDedupID = "Coracle-Deduplication-Id"
	// HeaderOrderKey is the key of a message. Programs get the messages with a key one at a time, in order.
	HeaderOrderKey = "Coracle-Message-Key"
	// HeaderEventKey is the same for a CloudEvent (Partitioning Extension).
	HeaderEventKey = "Ce-Partitionkey"
	// HeaderEventID and HeaderEventSource are headers of a CloudEvent in HTTP's binary content mode. Events with the same
	// source and ID are the same event.
	HeaderEventID     = "Ce-Id"
	HeaderEventSource = "Ce-Source"
	// HeaderDuplicate is "true" if HeaderID is an earlier message with the same sender's ID.
	HeaderDuplicate = "Coracle-Message-Duplicate"
	// HeaderPod is the pod that handled a message.
	HeaderPod = "Coracle-Message-Pod"
	// HeaderAttempt is the number of the attempt to have a program handle the message, from 1.
	HeaderAttempt = "Coracle-Message-Attempt"
	// HeaderDeadLetter is why another worker failed to handle the message, for which this one is the dead-letter worker.
	HeaderDeadLetter = "Coracle-Dead-Letter"
	// HeaderFailure is the Failure of a message, from an agent to the API server.
	HeaderFailure = "Coracle-Message-Failure"
	// HeaderUntouched is "true" if a message failed before any program received it, from an agent to the API
	// server.
	HeaderUntouched = "Coracle-Message-Untouched"
	// HeaderErrorType is the error type that the program reported.
	HeaderErrorType = "Lambda-Runtime-Function-Error-Type"
)

// Failure is the reason why a message was not accepted or got no reply. It is the reason in the sender's Status.
type Failure string

// Failures, with the status code that the sender gets.
const (
	// NoReceiver (503) means that no ready pod receives messages, or that another server keeps the queue.
	NoReceiver Failure = "NoReceiver"
	// QueueUnavailable (503) means that the queue takes no messages now: NATS cannot be written, or the server stops.
	QueueUnavailable Failure = "QueueUnavailable"
	// QueueFull (429) means that the queue or the server's space for messages is full.
	QueueFull Failure = "QueueFull"
	// ReceiverLost (502) means that the pod, its program or its node was lost after accepting the message. The
	// program may have handled it.
	ReceiverLost Failure = "ReceiverLost"
	// HandlerFailed (500) means that the program responded with an error.
	HandlerFailed Failure = "HandlerFailed"
	// HandlerTimeout (504) means that the program took longer than timeoutSeconds, or that the sender's deadline
	// has passed.
	HandlerTimeout Failure = "HandlerTimeout"
)

// Code returns the HTTP status code of the failure.
func (f Failure) Code() int {
	switch f {
	case QueueFull:
		return http.StatusTooManyRequests
	case NoReceiver, QueueUnavailable:
		return http.StatusServiceUnavailable
	case ReceiverLost:
		return http.StatusBadGateway
	case HandlerTimeout:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// Queue configures the message queue of a pod.
type Queue struct {
	// Worker is the name of the worker whose queue the pod takes messages from. Without it, the pod has a queue of its
	// own.
	Worker         string  `json:"worker,omitempty"`
	Mode           Mode    `json:"mode,omitempty"`
	Port           int32   `json:"port,omitempty"`
	Path           string  `json:"path,omitempty"`
	Concurrency    int32   `json:"concurrency,omitempty"`
	Limit          int32   `json:"limit,omitempty"`
	TimeoutSeconds int32   `json:"timeoutSeconds,omitempty"`
	QueueSeconds   int32   `json:"queueSeconds,omitempty"`
	Promise        Promise `json:"promise,omitempty"`
	MaxAttempts    int32   `json:"maxAttempts,omitempty"`
	DeadLetter     string  `json:"deadLetter,omitempty"`
	// Batch is nil if the program gets messages one by one.
	Batch *WorkerBatch `json:"batch,omitempty"`
	// Replies is the worker that gets the replies, RepliesSubject the NATS subject. Pods do not need them.
	Replies        string `json:"-"`
	RepliesSubject string `json:"-"`
	// Stream identifies the stream with the worker's messages; empty means that the server's disk has them. Pods do not
	// need it.
	Stream string `json:"-"`
}

// Timeout returns how long the program may take for a message.
func (q *Queue) Timeout() time.Duration { return time.Duration(q.TimeoutSeconds) * time.Second }

// MaxWait returns how long a message may wait in the queue, over all its attempts.
func (q *Queue) MaxWait() time.Duration { return time.Duration(q.QueueSeconds) * time.Second }

// maxAnnotation is the maximum size of a queue's configuration, in bytes.
const maxAnnotation = 4 << 10

// ParseQueue returns the queue configuration of a pod with defaults set, or nil if it has none. It returns an error
// for unknown fields, values out of bounds, and pods that cannot have a queue.
func ParseQueue(p *corev1.Pod) (*Queue, error) {
	text, ok := p.Annotations[AnnotationQueue]
	if !ok {
		return nil, nil
	}
	fail := func(format string, args ...any) (*Queue, error) {
		return nil, fmt.Errorf("annotation "+AnnotationQueue+": "+format, args...)
	}
	if len(text) > maxAnnotation {
		return fail("longer than %d bytes", maxAnnotation)
	}
	q := &Queue{}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return fail("%w", err)
	}
	if p.Spec.HostNetwork {
		return fail("a pod with hostNetwork cannot have a message queue")
	}
	q.defaults()
	batch := WorkerBatch{Size: 1}
	if q.Batch != nil {
		batch = *q.Batch
	}
	for _, name := range []string{q.Worker, q.DeadLetter} {
		if name != "" {
			if errs := validation.NameIsDNS1035Label(name, false); len(errs) > 0 {
				return fail("%q: %s", name, errs[0])
			}
		}
	}
	for _, b := range []struct {
		name            string
		value           int32
		least, greatest int32
	}{
		{"port", q.Port, 1, 65535}, {"concurrency", q.Concurrency, 1, maxConcurrency}, {"limit", q.Limit, 1, maxQueue},
		{"timeoutSeconds", q.TimeoutSeconds, 1, maxTimeout}, {"queueSeconds", q.QueueSeconds, 1, maxQueueWait},
		{"maxAttempts", q.MaxAttempts, 1, maxAttempts}, {"batch.size", batch.Size, 1, maxBatchSize},
		{"batch.windowSeconds", batch.WindowSeconds, 0, maxBatchWindow},
	} {
		if b.value < b.least || b.value > b.greatest {
			return fail("%s: must be between %d and %d", b.name, b.least, b.greatest)
		}
	}
	if q.Mode != ModePoll && q.Mode != ModePush {
		return fail("unknown mode %q", q.Mode)
	}
	if q.Promise != AtMostOnce && q.Promise != AtLeastOnce {
		return fail("unknown promise %q", q.Promise)
	}
	if err := checkPath(q.Path); err != "" {
		return fail("path: %s", err)
	}
	return q, nil
}

func (q *Queue) defaults() {
	set := func(v *int32, d int32) {
		if *v == 0 {
			*v = d
		}
	}
	set(&q.Port, defaultPort)
	set(&q.Concurrency, 1)
	set(&q.Limit, defaultQueue)
	set(&q.TimeoutSeconds, defaultTimeout)
	set(&q.QueueSeconds, defaultQueueWait)
	set(&q.MaxAttempts, defaultAttempts)
	if q.Batch != nil {
		set(&q.Batch.Size, defaultBatch)
	}
	if q.Mode == "" {
		q.Mode = ModePoll
	}
	if q.Promise == "" {
		q.Promise = AtMostOnce
	}
	if q.Path == "" {
		q.Path = "/"
	}
}

// Annotation returns the value of AnnotationQueue.
func (q *Queue) Annotation() string {
	text, _ := json.Marshal(q) // cannot fail for these field types
	return string(text)
}

// QueueOf returns the queue configuration of a worker's pods.
func QueueOf(w *Worker) *Queue {
	q := &Queue{
		Worker: w.Name, Mode: w.Spec.Mode, Concurrency: w.Spec.Concurrency, Limit: w.Spec.QueueLimit,
		TimeoutSeconds: w.Spec.TimeoutSeconds,
		QueueSeconds:   w.Spec.QueueSeconds, Promise: w.Spec.Delivery.Promise, MaxAttempts: w.Spec.Delivery.MaxAttempts,
		DeadLetter: w.Spec.Delivery.DeadLetter, Replies: w.Spec.Delivery.Replies,
		Batch: w.Spec.Batch, RepliesSubject: w.Spec.Delivery.RepliesSubject,
	}
	if p := w.Spec.Push; p != nil {
		q.Port, q.Path = p.Port, p.Path
	}
	if w.Spec.Delivery.Store == StoreNATS {
		q.Stream = string(w.UID)
	}
	return q
}

// LastMessageStep returns the least difference between two values of a worker's LastMessageTime, for its IdleSeconds.
func LastMessageStep(idle time.Duration) time.Duration { return max(idle/4, time.Second) }
