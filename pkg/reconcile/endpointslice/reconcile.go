// Package endpointslice keeps the endpoint slices of each service with a selector.
//
// It may import engine. What goes into which slice is decided by upstream's library,
// k8s.io/endpointslice. Its invariant: it touches only slices that say they are its own.
package endpointslice

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

const (
	manager = "endpointslice-controller.k8s.io"
	// perSlice is how many endpoints a slice holds at most; upstream's default.
	perSlice = 100
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "endpointslice", Workers: 4,
		Watches: []engine.Watch{
			{Object: &corev1.Service{}},
			{Object: &corev1.Pod{}, Map: services, Changed: func(was, is client.Object) bool {
				a, ok1 := was.(*corev1.Pod)
				b, ok2 := is.(*corev1.Pod)
				return !ok1 || !ok2 || Matters(a, b)
			}},
			{Object: &discoveryv1.EndpointSlice{}, Map: service},
		},
		Reads: []client.Object{&corev1.Node{}},
		Writes: []engine.Write{
			{Object: &discoveryv1.EndpointSlice{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}},
		},
		New: func(env engine.Env) engine.Func {
			tracker := endpointsliceutil.NewEndpointSliceTracker()
			return (&reconciler{env, endpointslice.NewReconciler(clientset{env: env}, nodes{env: env}, perSlice, tracker,
				topologycache.NewTopologyCache(), recorder{env}, manager, endpointslice.WithPreferSameTrafficDistributionEnabled(true))}).reconcile
		},
	}
}

// services maps a pod to the services that select it.
func services(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	if len(o.GetLabels()) == 0 {
		return nil
	}
	var all corev1.ServiceList
	if env.Cache.List(ctx, &all, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	var out []engine.Request
	for i := range all.Items {
		if Selects(&all.Items[i], o.GetLabels()) {
			out = append(out, engine.RequestFor(all.Items[i].Namespace, all.Items[i].Name))
		}
	}
	return out
}

// service maps one of our slices to its service.
func service(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	l := o.GetLabels()
	if l[discoveryv1.LabelManagedBy] != manager || l[discoveryv1.LabelServiceName] == "" {
		return nil
	}
	return []engine.Request{engine.RequestFor(o.GetNamespace(), l[discoveryv1.LabelServiceName])}
}

type reconciler struct {
	engine.Env
	upstream *endpointslice.Reconciler
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var svc corev1.Service
	if err := r.Cache.Get(ctx, req.NamespacedName, &svc); err != nil {
		// Its slices go with it, by their owner reference.
		r.upstream.DeleteService(req.Namespace, req.Name)
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if svc.DeletionTimestamp != nil || !HasSelector(&svc) {
		return engine.Result{}, nil
	}
	var pods corev1.PodList
	if err := r.Cache.List(ctx, &pods, client.InNamespace(svc.Namespace), client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(svc.Spec.Selector)}); err != nil {
		return engine.Result{}, err
	}
	var have discoveryv1.EndpointSliceList
	if err := r.Cache.List(ctx, &have, client.InNamespace(svc.Namespace), client.MatchingLabels{
		discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: manager,
	}); err != nil {
		return engine.Result{}, err
	}
	podList := make([]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		podList[i] = &pods.Items[i]
	}
	var slices []*discoveryv1.EndpointSlice
	for i := range have.Items {
		if have.Items[i].DeletionTimestamp == nil {
			slices = append(slices, have.Items[i].DeepCopy()) // the library changes what it is given
		}
	}
	return engine.Result{}, r.upstream.Reconcile(klog.Background(), &svc, podList, slices, changed(&svc, podList))
}

// changed is when the newest of what the slices follow from became so, for upstream's annotation that measures how long it took.
func changed(svc *corev1.Service, pods []*corev1.Pod) time.Time {
	at := svc.CreationTimestamp.Time
	for _, p := range pods {
		for i := range p.Status.Conditions {
			if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady && c.LastTransitionTime.After(at) {
				at = c.LastTransitionTime.Time
			}
		}
	}
	return at
}
