package workers

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

const (
	// defaultWait is the default time that a sender waits for the reply, maxWait the longest time it may ask for.
	defaultWait = time.Minute
	maxWait     = time.Hour
	// maxContentType bounds the media type of a message, in bytes.
	maxContentType = 256
)

var (
	podKind     = corev1.SchemeGroupVersion.WithKind("Pod")
	serviceKind = corev1.SchemeGroupVersion.WithKind("Service")
	workerKind  = workers.GroupVersion.WithKind("Worker")
)

// messaging puts messages for pods and services into queues.
type messaging struct {
	// here is the node of this process; nil while no agent runs in it.
	here atomic.Pointer[node]
	// queues are nil while they do not run.
	queues atomic.Pointer[queues]
	// host is what the server offers; nil if none runs in this process.
	host atomic.Pointer[system.Server]
	// receiving counts what arrives over Ingresses.
	receiving *receiving
}

// address is a queue for a message.
type address struct {
	key    queue.Key
	pod    string // the only pod that may get the message; "" means any
	config *workers.Queue
}

func (m *messaging) pod(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := builtin.AdmitProxy(req, on, "message"); err != nil {
		return nil, err
	}
	_, namespace, name := on.Target()
	if on.Read(podKind, namespace, name) == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	s, err := m.sender(on)
	if err != nil {
		return nil, err
	}
	s.find = func(ctx context.Context) (address, error) {
		p, ok := on.Read(podKind, namespace, name).(*corev1.Pod)
		if !ok || p.DeletionTimestamp != nil {
			return address{}, s.none("is being deleted")
		}
		a, err := s.queueOf(ctx, p)
		if a.key.Worker != "" {
			a.pod = p.Name
		}
		return a, err
	}
	return s, nil
}

// service returns a handler for a service: the messages of a worker's service go to the worker's queue, others to the
// queue of a random ready pod.
func (m *messaging) service(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := builtin.AdmitProxy(req, on, "message"); err != nil {
		return nil, err
	}
	r, namespace, name := on.Target()
	svc, ok := on.Read(r.GroupVersionKind, namespace, name).(*corev1.Service)
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("services"), name)
	}
	s, err := m.sender(on)
	if err != nil {
		return nil, err
	}
	if ref := metav1.GetControllerOfNoCopy(svc); ref != nil && ref.Kind == workerKind.Kind &&
		ref.APIVersion == workers.GroupVersion.String() {
		s.find = func(ctx context.Context) (address, error) { return s.worker(ctx, namespace, ref.Name, nil) }
		return s, nil
	}
	s.find = func(ctx context.Context) (address, error) {
		pods := endpointPods(on, svc)
		if len(pods) == 0 {
			return address{}, s.none("has no ready pod that takes messages")
		}
		return s.queueOf(ctx, pods[rand.IntN(len(pods))]) //nolint:gosec // to spread messages
	}
	return s, nil
}

func (m *messaging) sender(on kind.Connection) (sender, error) {
	q := m.queues.Load()
	if q == nil {
		return sender{}, failed(workers.NoReceiver, http.StatusServiceUnavailable, "this server's message queues start")
	}
	return sender{queues: q, on: on}, nil
}

// none returns the error of a target without a queue.
func (s sender) none(what string) error {
	r, _, name := s.on.Target()
	return failed(workers.NoReceiver, http.StatusServiceUnavailable, r.Singular+" "+name+" "+what)
}

// queueOf returns the queue of a pod.
func (s sender) queueOf(ctx context.Context, p *corev1.Pod) (address, error) {
	c, err := workers.ParseQueue(p)
	if err != nil {
		return address{}, s.none("has an invalid message queue: " + err.Error())
	}
	if c == nil {
		return address{}, s.none("has no message queue: it needs the annotation " + workers.AnnotationQueue)
	}
	a := address{key: dispatch.KeyOf(p, c), config: c}
	if a.key.Worker == "" {
		return a, nil
	}
	return s.worker(ctx, p.Namespace, a.key.Worker, c)
}

// worker returns the queue of a worker, which may be the name in an annotation only; c is its configuration then.
func (s sender) worker(ctx context.Context, namespace, name string, c *workers.Queue) (address, error) {
	a := address{key: queue.Key{Namespace: namespace, Worker: name}, config: c}
	w, ok := s.on.Read(workerKind, namespace, name).(*workers.Worker)
	switch {
	case ok:
		a.config = workers.QueueOf(w)
		return a, s.home(ctx, w)
	case c == nil:
		return a, s.none("belongs to worker " + name + ", which was deleted")
	}
	return a, nil
}

// receives reports whether a pod can receive messages: it has a queue and is ready.
func receives(p *corev1.Pod) bool {
	return p.Annotations[workers.AnnotationQueue] != "" && p.DeletionTimestamp == nil && p.Spec.NodeName != "" &&
		p.Status.Phase == corev1.PodRunning && podstate.Ready(p)
}

// endpointPods returns the receivers among the ready endpoints of a service.
func endpointPods(on kind.Connection, svc *corev1.Service) (pods []*corev1.Pod) {
	for _, o := range on.List(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), svc.Namespace) {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != svc.Name {
			continue
		}
		for i := range slice.Endpoints {
			ep := &slice.Endpoints[i]
			if ep.TargetRef == nil || ep.TargetRef.Namespace != svc.Namespace ||
				ep.Conditions.Ready != nil && !*ep.Conditions.Ready {
				continue
			}
			// Users can write EndpointSlices, so accept only pods of the same namespace.
			if p, ok := on.Read(podKind, svc.Namespace, ep.TargetRef.Name).(*corev1.Pod); ok && receives(p) {
				pods = append(pods, p)
			}
		}
	}
	return pods
}
