package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LabelWorker is on the pods of a worker; its value is the worker's name.
	LabelWorker = "workers.coracle.dev/worker"
	// AnnotationQueue is on pods that receive messages; its value is a Queue in JSON. Such a pod must have one container,
	// or receive with its first one.
	AnnotationQueue = "workers.coracle.dev/queue"
	// QueueCondition is the type of the pod condition in which the node's agent reports the state of the queue: its
	// message is a QueueReport in JSON.
	QueueCondition corev1.PodConditionType = "workers.coracle.dev/Queue"

	// RuntimeAddress is where a pod in mode Poll finds the node's agent: in its own network namespace, so that nothing
	// outside of the pod can reach it.
	RuntimeAddress = "127.0.0.1:9001"
	// RuntimeEnv names the environment variable with RuntimeAddress, as AWS Lambda does.
	RuntimeEnv = "AWS_LAMBDA_RUNTIME_API"
	// MessagesEnv names the environment variable with RuntimeAddress in both modes, for sending messages.
	MessagesEnv = "CORACLE_MESSAGES_API"
	// ConcurrencyEnv names the environment variable with the number of messages that the program may handle at once.
	ConcurrencyEnv = "WORKER_CONCURRENCY"
	// ParametersEnv names the environment variable with the parameters.
	ParametersEnv = "WORKER_PARAMETERS"
	// FunctionEnv names the environment variable with the built-in function.
	FunctionEnv = "WORKER_FUNCTION"

	// MaxPayload is the size limit of a message and of a reply, in bytes.
	MaxPayload = 1 << 20
)

// The HTTP headers of messages, between sender, API server, agent and program.
const (
	// HeaderWait, if "true", asks for the reply.
	HeaderWait = "Coracle-Wait"
	// HeaderTimeout is how long the sender waits for the reply, as a Go duration.
	HeaderTimeout = "Coracle-Timeout"
	// HeaderID is the ID of a message.
	HeaderID = "Coracle-Message-Id"
	// HeaderPod is the pod that has handled a message.
	HeaderPod = "Coracle-Message-Pod"
	// HeaderAttempt counts from 1 how often a message has been given to a program.
	HeaderAttempt = "Coracle-Message-Attempt"
	// HeaderDeadLetter is why a message was sent to a dead-letter worker.
	HeaderDeadLetter = "Coracle-Dead-Letter"
	// HeaderFailure is the Failure of a message, between agent and API server.
	HeaderFailure = "Coracle-Message-Failure"
	// HeaderUntouched is "true" for a failure before any program got the message, between agent and API server.
	HeaderUntouched = "Coracle-Message-Untouched"
	// HeaderReceipt proves that a message was sent to a worker, for a node that sends it on. It comes from the API server
	// and goes back to it.
	HeaderReceipt = "Coracle-Message-Receipt"
	// HeaderErrorType is the type of an error that the program reported, as it called it.
	HeaderErrorType = "Lambda-Runtime-Function-Error-Type"
)

// Failure is why a message got no reply or was not accepted. It is the reason of the Status that the sender gets.
type Failure string

// The failures, with the status code that the sender gets.
const (
	// NoReceiver (503): no ready pod takes messages.
	NoReceiver Failure = "NoReceiver"
	// QueueFull (429): the queue, or the node's memory for messages, is full.
	QueueFull Failure = "QueueFull"
	// ReceiverLost (502): the pod, its program or its node was lost after the message was accepted. It may have been
	// handled.
	ReceiverLost Failure = "ReceiverLost"
	// HandlerFailed (500): the program answered with an error.
	HandlerFailed Failure = "HandlerFailed"
	// HandlerTimeout (504): the program took longer than timeoutSeconds, or the sender's deadline has passed.
	HandlerTimeout Failure = "HandlerTimeout"
)

// Code is the HTTP status code of a failure.
func (f Failure) Code() int {
	switch f {
	case QueueFull:
		return http.StatusTooManyRequests
	case NoReceiver:
		return http.StatusServiceUnavailable
	case ReceiverLost:
		return http.StatusBadGateway
	case HandlerTimeout:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// Queue configures the message queue of one pod.
type Queue struct {
	// Worker is the name of the worker, empty for a pod without one. Undelivered messages are sent to the service of this
	// name.
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
}

// Timeout is how long the program may take for a message.
func (q *Queue) Timeout() time.Duration { return time.Duration(q.TimeoutSeconds) * time.Second }

// MaxWait is how long a message may wait in the queue.
func (q *Queue) MaxWait() time.Duration { return time.Duration(q.QueueSeconds) * time.Second }

// maxAnnotation is the size limit of a queue's configuration, in bytes.
const maxAnnotation = 4 << 10

// ParseQueue returns the queue configuration of a pod with defaults, or nil if it has none. It returns an error for
// unknown fields, values out of bounds, and pods that cannot have a queue.
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
		{"maxAttempts", q.MaxAttempts, 1, maxAttempts},
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

// Annotation is the value of AnnotationQueue.
func (q *Queue) Annotation() string {
	text, _ := json.Marshal(q) // it has no field that could fail
	return string(text)
}

// QueueOf is the configuration of the queues of a worker's pods.
func QueueOf(w *Worker) *Queue {
	q := &Queue{
		Worker: w.Name, Mode: w.Spec.Mode, Concurrency: w.Spec.Concurrency, Limit: w.Spec.QueueLimit,
		TimeoutSeconds: w.Spec.TimeoutSeconds,
		QueueSeconds:   w.Spec.QueueSeconds, Promise: w.Spec.Delivery.Promise, MaxAttempts: w.Spec.Delivery.MaxAttempts,
		DeadLetter: w.Spec.Delivery.DeadLetter,
	}
	if p := w.Spec.Push; p != nil {
		q.Port, q.Path = p.Port, p.Path
	}
	return q
}

// QueueReport is the state of a pod's queue.
type QueueReport struct {
	// Depth is how many messages wait, InFlight how many the program has.
	Depth    int32 `json:"depth"`
	InFlight int32 `json:"inFlight"`
	// Last is when the last message was accepted.
	Last *metav1.Time `json:"last,omitempty"`
}

// ReportOf returns the last report about a pod's queue; zero if there is none.
func ReportOf(p *corev1.Pod) QueueReport {
	var r QueueReport
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == QueueCondition {
			if json.Unmarshal([]byte(c.Message), &r) != nil || r.Depth < 0 || r.InFlight < 0 || r.Depth > maxQueue ||
				r.InFlight > maxConcurrency {
				return QueueReport{}
			}
		}
	}
	return r
}
