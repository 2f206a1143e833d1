package endpointslice

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

// clientset is as much of client-go's as the upstream library calls: writing endpoint slices.
// Calling anything else of it is a programming error, and panics.
type clientset struct {
	kubernetes.Interface
	env engine.Env
}

func (c clientset) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return group{env: c.env} }

type group struct {
	discoveryclient.DiscoveryV1Interface
	env engine.Env
}

func (g group) EndpointSlices(namespace string) discoveryclient.EndpointSliceInterface {
	return sliceClient{env: g.env, namespace: namespace}
}

type sliceClient struct {
	discoveryclient.EndpointSliceInterface
	env       engine.Env
	namespace string
}

func (s sliceClient) Create(ctx context.Context, o *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	made := o.DeepCopy()
	made.Namespace = s.namespace
	return made, s.env.Client.Create(ctx, made)
}

func (s sliceClient) Update(ctx context.Context, o *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	made := o.DeepCopy()
	return made, s.env.Client.Update(ctx, made)
}

func (s sliceClient) Delete(ctx context.Context, name string, _ metav1.DeleteOptions) error {
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	return client.IgnoreNotFound(s.env.Client.Delete(ctx, o))
}

// nodes lists nodes out of the cache, for the zones of endpoints.
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

// recorder passes the library's events on.
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
