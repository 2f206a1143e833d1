package endpointslice

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// clientset implements the part of client-go's interface that the upstream library calls: writing EndpointSlices.
// Any other call is a programming error and panics.
type clientset struct {
	kubernetes.Interface
	env     engine.Env
	written *writes
}

func (c clientset) DiscoveryV1() discoveryclient.DiscoveryV1Interface {
	return group{env: c.env, written: c.written}
}

type group struct {
	discoveryclient.DiscoveryV1Interface
	env     engine.Env
	written *writes
}

func (g group) EndpointSlices(namespace string) discoveryclient.EndpointSliceInterface {
	return sliceClient{env: g.env, written: g.written, namespace: namespace}
}

type sliceClient struct {
	discoveryclient.EndpointSliceInterface
	env       engine.Env
	written   *writes
	namespace string
}

func (s sliceClient) Create(ctx context.Context, o *discoveryv1.EndpointSlice,
	_ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	made := o.DeepCopy()
	made.Namespace = s.namespace
	if err := s.env.Client.Create(ctx, made); err != nil {
		return made, err
	}
	s.written.note(made)
	return made, nil
}

func (s sliceClient) Update(ctx context.Context, o *discoveryv1.EndpointSlice,
	_ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	made := o.DeepCopy()
	if err := s.env.Client.Update(ctx, made); err != nil {
		return made, err
	}
	s.written.note(made)
	return made, nil
}

func (s sliceClient) Delete(ctx context.Context, name string, _ metav1.DeleteOptions) error {
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	if err := client.IgnoreNotFound(s.env.Client.Delete(ctx, o)); err != nil {
		return err
	}
	s.written.gone(s.namespace, name)
	return nil
}

// writes records the resource versions that reconciles in progress wrote, because the library does not return what
// it wrote.
type writes struct {
	mu sync.Mutex
	of map[client.ObjectKey]map[string]string // by service, the resource version of each slice by name
}

func (w *writes) begin(service client.ObjectKey, versions map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of[service] = versions
}

func (w *writes) end(service client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, service)
}

func (w *writes) note(s *discoveryv1.EndpointSlice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if versions := w.of[client.ObjectKey{
		Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName],
	}]; versions != nil {
		versions[s.Name] = s.ResourceVersion
	}
}

func (w *writes) gone(namespace, slice string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for service, versions := range w.of {
		if service.Namespace == namespace {
			delete(versions, slice)
		}
	}
}

// nodes gets nodes from the cache. The library reads their zones.
type nodes struct {
	corelisters.NodeLister
	env engine.Env
}

func (n nodes) Get(name string) (*corev1.Node, error) {
	var node corev1.Node
	if err := n.env.Cache.Get(context.Background(), client.ObjectKey{Name: name}, &node); err != nil {
		return nil, err
	}
	return &node, nil
}

type recorder struct{ env engine.Env }

func (r recorder) Event(o runtime.Object, kind, reason, message string) {
	if obj, ok := o.(client.Object); ok {
		r.env.Events.Event(obj, kind, reason, "%s", message)
	}
}

func (r recorder) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	if obj, ok := o.(client.Object); ok {
		r.env.Events.Event(obj, kind, reason, format, args...)
	}
}

func (r recorder) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(o, kind, reason, format, args...)
}
