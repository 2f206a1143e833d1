package workers

import (
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

const (
	// defaultWait is the default time that a sender waits for the reply, maxWait the longest time it may ask for.
	defaultWait = time.Minute
	maxWait     = time.Hour
	// mostReceivers bounds the pods of a service that are tried while they refuse a message.
	mostReceivers = 5
	// maxContentType bounds the media type of a message, in bytes.
	maxContentType = 256
	// acceptTime bounds the time in which a node accepts a message without a reply.
	acceptTime = 15 * time.Second
)

var (
	podKind     = corev1.SchemeGroupVersion.WithKind("Pod")
	serviceKind = corev1.SchemeGroupVersion.WithKind("Service")
	workerKind  = workers.GroupVersion.WithKind("Worker")
)

// messaging sends messages to pods and services.
type messaging struct {
	host system.Host
	// here is the node of this process; nil while no agent runs in it.
	here atomic.Pointer[node]
	// local replaces here in tests.
	local func(name string) localNode
}

// localNode is a node agent in this process. Its RoundTrip calls the agent's API without a connection.
type localNode interface {
	http.RoundTripper
	// Accept queues messages in order and reports each outcome through Done. It blocks only on the disk.
	Accept(list []*workers.Delivery)
}

// localNode returns the agent of a node, or nil if it is not in this process.
func (m *messaging) localNode(name string) localNode {
	if m.local != nil {
		return m.local(name)
	}
	if n := m.here.Load(); n != nil && n.name == name {
		return n
	}
	return nil
}

func (m *messaging) pod(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := builtin.AdmitProxy(req, on, "message"); err != nil {
		return nil, err
	}
	_, _, name := on.Target()
	if on.Read(podKind, namespaceOf(on), name) == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return sender{messaging: m, on: on, candidates: func() []*corev1.Pod {
		if p, ok := on.Read(podKind, namespaceOf(on), name).(*corev1.Pod); ok && receives(p) {
			return []*corev1.Pod{p}
		}
		return nil
	}}, nil
}

// service returns a handler that sends a message to a random ready pod of a service.
func (m *messaging) service(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := builtin.AdmitProxy(req, on, "message"); err != nil {
		return nil, err
	}
	r, namespace, name := on.Target()
	svc, ok := on.Read(r.GroupVersionKind, namespace, name).(*corev1.Service)
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("services"), name)
	}
	s := sender{messaging: m, on: on, candidates: func() []*corev1.Pod { return endpointPods(on, svc) }}
	if ref := metav1.GetControllerOfNoCopy(svc); ref != nil && ref.Kind == workerKind.Kind &&
		ref.APIVersion == workers.GroupVersion.String() {
		s.worker = ref.Name
		s.starting = func() []*corev1.Pod { return selectedPods(on, svc) }
	}
	return s, nil
}

func namespaceOf(on kind.Connection) string {
	_, namespace, _ := on.Target()
	return namespace
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

// selectedPods returns the receivers that a service selects, including pods without an endpoint yet.
func selectedPods(on kind.Connection, svc *corev1.Service) (pods []*corev1.Pod) {
	if len(svc.Spec.Selector) == 0 {
		return nil
	}
	selector := labels.SelectorFromSet(svc.Spec.Selector)
	for _, o := range on.List(podKind, svc.Namespace) {
		if p, ok := o.(*corev1.Pod); ok && selector.Matches(labels.Set(p.Labels)) && receives(p) {
			pods = append(pods, p)
		}
	}
	return pods
}
