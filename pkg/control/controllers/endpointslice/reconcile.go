// Package endpointslice maintains the EndpointSlices of each Service with a selector. Upstream's library,
// k8s.io/endpointslice, decides which slice holds which endpoints. Its invariant: it touches only slices whose
// managed-by label names it.
package endpointslice

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/engine/services"
)

const (
	manager = "endpointslice-controller.k8s.io"
	// perSlice is the maximum number of endpoints in a slice. It is upstream's default.
	perSlice = 100
)

// New declares the reconciler.
func New() *engine.Reconciler {
	var t *topology
	return &engine.Reconciler{
		Name: "endpointslice", Workers: 4,
		Watches: []engine.Watch{
			{Object: &corev1.Service{}},
			services.WatchPods(),
			{Object: &discoveryv1.EndpointSlice{}, Map: service},
			{
				Object: &corev1.Node{},
				Event:  func(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request { return t.node(was, is) },
			},
		},
		Writes: []engine.Write{
			{
				Object: &discoveryv1.EndpointSlice{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata},
			},
		},
		New: func(env engine.Env) engine.Func {
			r := reconcilerOf(env)
			t = r.topology
			return r.reconcile
		},
	}
}

func service(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	l := o.GetLabels()
	if l[discoveryv1.LabelManagedBy] != manager || l[discoveryv1.LabelServiceName] == "" {
		return nil
	}
	return []engine.Request{engine.RequestFor(o.GetNamespace(), l[discoveryv1.LabelServiceName])}
}

func reconcilerOf(env engine.Env) *reconciler {
	written, topology := &writes{of: map[client.ObjectKey]map[string]string{}}, newTopology()
	library := endpointslice.NewReconciler(clientset{env: env, written: written}, nodes{env: env}, perSlice,
		endpointsliceutil.NewEndpointSliceTracker(),
		topology.library, recorder{env}, manager, endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	return &reconciler{Env: env, upstream: library, written: written, memory: services.NewMemory(), topology: topology}
}

type upstream interface {
	Reconcile(klog.Logger, *corev1.Service, []*corev1.Pod, []*discoveryv1.EndpointSlice, time.Time) error
	DeleteService(namespace, name string)
}

type reconciler struct {
	engine.Env
	upstream upstream
	written  *writes
	memory   *services.Memory
	topology *topology
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var svc corev1.Service
	if err := r.Cache.Get(ctx, req.NamespacedName, &svc); err != nil {
		// The garbage collector deletes its slices.
		r.upstream.DeleteService(req.Namespace, req.Name)
		r.memory.Forget(req.NamespacedName)
		r.topology.forget(req.NamespacedName)
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if svc.DeletionTimestamp != nil || !services.HasSelector(&svc) {
		return engine.Result{}, nil
	}
	again, err := r.topology.use(&svc, func() ([]*corev1.Node, error) {
		var nodes corev1.NodeList
		err := r.Cache.List(ctx, &nodes)
		return engine.Pointers(nodes.Items), err
	})
	if err != nil {
		return engine.Result{}, err
	}
	if again {
		r.memory.Forget(req.NamespacedName)
	}
	var pods corev1.PodList
	if err := r.Cache.List(ctx, &pods, client.InNamespace(svc.Namespace), client.MatchingLabelsSelector{
		Selector: labels.SelectorFromSet(svc.Spec.Selector),
	}); err != nil {
		return engine.Result{}, err
	}
	var have discoveryv1.EndpointSliceList
	if err := r.Cache.List(ctx, &have, client.InNamespace(svc.Namespace), client.MatchingLabels{
		discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: manager,
	}); err != nil {
		return engine.Result{}, err
	}
	podList := engine.Pointers(pods.Items)
	state := r.memory.State(&svc, podList)
	for i := range have.Items {
		state.Written[have.Items[i].Name] = have.Items[i].ResourceVersion
	}
	if r.memory.Is(req.NamespacedName, state) {
		return engine.Result{}, nil
	}
	var slices []*discoveryv1.EndpointSlice
	for i := range have.Items {
		if have.Items[i].DeletionTimestamp == nil {
			slices = append(slices, have.Items[i].DeepCopy()) // the library changes its arguments
		}
	}
	r.written.begin(req.NamespacedName, state.Written)
	err = r.upstream.Reconcile(klog.Background(), &svc, podList, slices, changed(&svc, podList))
	r.written.end(req.NamespacedName)
	if err != nil {
		return engine.Result{}, err
	}
	r.memory.Keep(req.NamespacedName, state)
	return engine.Result{}, nil
}

// changed returns when the newest input of the slices changed: the service's creation or a pod's readiness.
// Upstream's annotation for measuring latency needs it.
func changed(svc *corev1.Service, pods []*corev1.Pod) time.Time {
	at := svc.CreationTimestamp.Time
	for _, p := range pods {
		if c := podstate.Condition(p, corev1.PodReady); c != nil && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}
