// Package buildbarn makes the children of Buildbarn's parts, and the parts of whole farms.
//
// It may import engine, apis and buildbarn/config. Its invariants: pods get only configurations that were checked, each as a copy that never
// changes; a child that is as it should be is not written; and what somebody else made is left alone.
package buildbarn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/buildbarn/metrics"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

// Indexes.
const (
	indexSource = "buildbarn.configMap" // parts by the ConfigMap they name
	indexHost   = "buildbarn.host"      // parts and Ingresses by host
	indexLabels = "buildbarn.part"      // pods and claims by component and part
)

// refusedAgain is how long after the API server refused a child it is tried again; changes are tried at once.
const refusedAgain = time.Minute

// Read reads the metrics of a program at the address of a pod.
type Read func(ctx context.Context, address string) (metrics.Families, error)

// New declares the reconcilers of the parts and of farms; read is for schedulers.
func New(read Read) []*engine.Reconciler {
	return []*engine.Reconciler{
		newPart(part{object: func() buildbarn.Part { return &buildbarn.BuildbarnScheduler{} }, list: func() client.ObjectList { return &buildbarn.BuildbarnSchedulerList{} }, service: true}),
		newPart(part{object: func() buildbarn.Part { return &buildbarn.BuildbarnWorker{} }, list: func() client.ObjectList { return &buildbarn.BuildbarnWorkerList{} }, read: read}),
		newPart(part{object: func() buildbarn.Part { return &buildbarn.BuildbarnStorage{} }, list: func() client.ObjectList { return &buildbarn.BuildbarnStorageList{} }, service: true, sets: true}),
		newPart(part{object: func() buildbarn.Part { return &buildbarn.BuildbarnFrontend{} }, list: func() client.ObjectList { return &buildbarn.BuildbarnFrontendList{} }, service: true}),
		newPart(part{object: func() buildbarn.Part { return &buildbarn.BuildbarnBrowser{} }, list: func() client.ObjectList { return &buildbarn.BuildbarnBrowserList{} }, service: true}),
		newFarm(),
	}
}

// part is one of the kinds of parts.
type part struct {
	object  func() buildbarn.Part
	list    func() client.ObjectList
	service bool // it has a service
	sets    bool // its pods are of a StatefulSet, not of a Deployment
	read    Read // of schedulers, for workers
}

func (k part) kind() string { return kindOf(k.object()) }

func (k part) workload() client.Object {
	if k.sets {
		return &appsv1.StatefulSet{}
	}
	return &appsv1.Deployment{}
}

func newPart(k part) *engine.Reconciler {
	gk := buildbarn.GroupVersion.WithKind(k.kind()).GroupKind()
	mine := named(engine.Controller(gk))
	all := []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}
	hosts := buildbarn.HostOf(k.object()) != ""
	r := &engine.Reconciler{
		Name: strings.ToLower(k.kind()), Workers: 2, When: k.object(),
		Watches: []engine.Watch{
			{Object: k.object()},
			{Object: k.workload(), Map: mine},
			{Object: &corev1.ConfigMap{}, Map: k.configured(engine.Controller(gk))},
			{Object: &corev1.Pod{}, Map: labelled(k.object().Component()), Changed: podMatters},
		},
		Writes: []engine.Write{
			{Object: k.object(), Parts: []engine.Part{engine.Status, engine.Finalizers}},
			{Object: k.workload(), Parts: all},
			{Object: &corev1.ConfigMap{}, Parts: all},
		},
		Indexes: []engine.Index{
			{Object: k.object(), Name: indexSource, Values: func(o client.Object) []string {
				if name := o.(buildbarn.Part).Pods().ConfigMapName; name != "" {
					return []string{name}
				}
				return []string{buildbarn.DefaultConfigMap}
			}},
			engine.ByController(&corev1.ConfigMap{}), byLabels(&corev1.Pod{}),
		},
	}
	if k.outlives() {
		r.Watches = append(r.Watches, engine.Watch{Object: &buildbarn.BuildbarnWorker{}, Map: k.siblings, Changed: func(_, _ client.Object) bool { return false }})
	}
	if k.service {
		r.Watches = append(r.Watches, engine.Watch{Object: &corev1.Service{}, Map: mine})
		r.Writes = append(r.Writes, engine.Write{Object: &corev1.Service{}, Parts: all})
	}
	if hosts {
		r.Watches = append(r.Watches, engine.Watch{Object: &networkingv1.Ingress{}, Map: k.hosted(mine), Changed: engine.SpecChanged})
		r.Writes = append(r.Writes, engine.Write{Object: &networkingv1.Ingress{}, Parts: all})
		r.Indexes = append(r.Indexes, engine.Index{Object: &networkingv1.Ingress{}, Name: indexHost, Values: ingressHosts},
			engine.Index{Object: k.object(), Name: indexHost, Values: func(o client.Object) []string { return []string{buildbarn.HostOf(o.(buildbarn.Part))} }})
	}
	if k.sets {
		r.Reads = append(r.Reads, &corev1.PersistentVolumeClaim{})
		r.Writes = append(r.Writes, engine.Write{Object: &corev1.PersistentVolumeClaim{}, Parts: []engine.Part{engine.Delete}})
		r.Indexes = append(r.Indexes, byLabels(&corev1.PersistentVolumeClaim{}))
	}
	r.New = func(env engine.Env) engine.Func {
		return (&reconciler{env, k, hosts}).reconcile
	}
	return r
}

// byLabels is the index over pods or claims by the part that their labels name.
func byLabels(o client.Object) engine.Index {
	return engine.Index{Object: o, Name: indexLabels, Values: func(o client.Object) []string {
		l := o.GetLabels()
		if l[buildbarn.LabelApp] == "" || l[buildbarn.LabelPart] == "" {
			return nil
		}
		return []string{l[buildbarn.LabelApp] + "/" + l[buildbarn.LabelPart]}
	}}
}

func ingressHosts(o client.Object) (hosts []string) {
	for _, r := range o.(*networkingv1.Ingress).Spec.Rules {
		if r.Host != "" && !slices.Contains(hosts, r.Host) {
			hosts = append(hosts, r.Host)
		}
	}
	return hosts
}

type mapping = func(context.Context, engine.Env, client.Object) []engine.Request

// named maps a child to its part or, since it may be in its way, to the one of its name.
func named(controller mapping) mapping {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		if list := controller(ctx, env, o); len(list) > 0 {
			return list
		}
		return []engine.Request{engine.RequestFor(o.GetNamespace(), o.GetName())}
	}
}

// indexed returns the parts that an index finds.
func (k part) indexed(ctx context.Context, env engine.Env, namespace, index, value string) (out []engine.Request) {
	list := k.list()
	if env.ByIndex(ctx, list, namespace, index, value) != nil {
		return nil // the cache is ending
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		if p, ok := o.(client.Object); ok {
			out = append(out, engine.RequestFor(p.GetNamespace(), p.GetName()))
		}
		return nil
	})
	return out
}

// outlives reports whether workers need the part to end their actions.
func (k part) outlives() bool {
	return k.kind() == "BuildbarnScheduler" || k.kind() == "BuildbarnStorage"
}

// siblings maps workers to the parts of the same farm.
func (k part) siblings(ctx context.Context, env engine.Env, o client.Object) (out []engine.Request) {
	farm := metav1.GetControllerOfNoCopy(o)
	list := k.list()
	if farm == nil || env.Cache.List(ctx, list, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		p, ok := item.(client.Object)
		if ref := metav1.GetControllerOfNoCopy(p); ok && ref != nil && ref.UID == farm.UID {
			out = append(out, engine.RequestFor(p.GetNamespace(), p.GetName()))
		}
		return nil
	})
	return out
}

// configured maps a ConfigMap to the part whose copy it is, or to those that name it.
func (k part) configured(controller mapping) mapping {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		return append(controller(ctx, env, o), k.indexed(ctx, env, o.GetNamespace(), indexSource, o.GetName())...)
	}
}

// hosted maps an Ingress to its part and to all that want its hosts.
func (k part) hosted(mine mapping) mapping {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		out := mine(ctx, env, o)
		for _, host := range ingressHosts(o) {
			out = append(out, k.indexed(ctx, env, "", indexHost, host)...)
		}
		return out
	}
}

// labelled maps a pod to the part that its labels name.
func labelled(component string) mapping {
	return func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
		if l := o.GetLabels(); l[buildbarn.LabelApp] == component && l[buildbarn.LabelPart] != "" {
			return []engine.Request{engine.RequestFor(o.GetNamespace(), l[buildbarn.LabelPart])}
		}
		return nil
	}
}

// podMatters reports whether a pod's change is one of why it does not start.
func podMatters(was, is client.Object) bool {
	a, b := was.(*corev1.Pod), is.(*corev1.Pod)
	if a.Labels[buildbarn.LabelPart] == "" && b.Labels[buildbarn.LabelPart] == "" {
		return false
	}
	x, _ := stuck(a)
	y, _ := stuck(b)
	return x != y || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil)
}

type reconciler struct {
	engine.Env
	part
	hosts bool
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	p := r.object()
	if err := r.Cache.Get(ctx, req.NamespacedName, p); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	o, err := r.observe(ctx, p)
	if err != nil {
		return engine.Result{}, err
	}
	a := Plan(o, r.Now())
	err = r.apply(ctx, a)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return engine.Result{}, nil
	case refused(err):
		a.Status.State, a.Again = buildbarn.NotReady, refusedAgain
		set := meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: buildbarn.ConditionReady, Status: metav1.ConditionFalse, Reason: "Refused",
			Message: err.Error(), ObservedGeneration: p.GetGeneration(), LastTransitionTime: metav1.NewTime(r.Now())})
		if set {
			a.Events = append(a.Events, Event{corev1.EventTypeWarning, "Refused", err.Error()})
		}
	case err != nil:
		return engine.Result{}, err
	}
	for _, e := range a.Events {
		r.Events.Event(p, e.Type, e.Reason, "%s", e.Message)
	}
	if !equality.Semantic.DeepEqual(a.Status, *p.Observed()) {
		next := p.DeepCopyObject().(buildbarn.Part)
		*next.Observed() = a.Status
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
		if f := a.Finalizers; f != nil {
			f.SetResourceVersion(next.GetResourceVersion())
		}
	}
	if a.Finalizers != nil {
		if err := r.Client.Update(ctx, a.Finalizers); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
	}
	return engine.Result{RequeueAfter: a.Again}, nil
}

// refused reports whether the API server will not have a child as it is: another try would be the same.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
}

func (r *reconciler) apply(ctx context.Context, a Actions) error {
	for _, o := range a.Create {
		if err := r.Client.Create(ctx, o); err != nil {
			return err
		}
	}
	for _, o := range a.Update {
		if err := r.Client.Update(ctx, o); err != nil {
			return err
		}
	}
	for _, o := range a.Delete {
		if err := r.Client.Delete(ctx, o, engine.Preconditions(o), client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// get reads an object of the part's name. It returns false if there is none.
func (r *reconciler) get(ctx context.Context, namespace, name string, o client.Object) (bool, error) {
	err := r.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
	return err == nil, client.IgnoreNotFound(err)
}

func (r *reconciler) observe(ctx context.Context, p buildbarn.Part) (o Observed, err error) {
	o.Part = p
	namespace, name := p.GetNamespace(), p.GetName()
	source := p.Pods().ConfigMapName
	if source == "" {
		source = buildbarn.DefaultConfigMap
	}
	var s corev1.ConfigMap
	if ok, err := r.get(ctx, namespace, source, &s); err != nil {
		return o, err
	} else if ok {
		o.Source = &s
	}
	var copies corev1.ConfigMapList
	if err := r.ByIndex(ctx, &copies, namespace, engine.ControllerIndex, string(p.GetUID())); err != nil {
		return o, err
	}
	o.Copies = pointers(copies.Items)
	if err := r.observeChildren(ctx, p, &o); err != nil {
		return o, err
	}
	if farm := metav1.GetControllerOfNoCopy(p); farm != nil && r.outlives() && p.GetDeletionTimestamp() != nil {
		var workers buildbarn.BuildbarnWorkerList
		if err := r.Cache.List(ctx, &workers, client.InNamespace(namespace)); err != nil {
			return o, err
		}
		for i := range workers.Items {
			if ref := metav1.GetControllerOfNoCopy(&workers.Items[i]); ref != nil && ref.UID == farm.UID {
				o.Draining++
			}
		}
	}
	labels := p.Component() + "/" + name
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, namespace, indexLabels, labels); err != nil {
		return o, err
	}
	o.Pods = pointers(pods.Items)
	if r.sets {
		var claims corev1.PersistentVolumeClaimList
		if err := r.ByIndex(ctx, &claims, namespace, indexLabels, labels); err != nil {
			return o, err
		}
		o.Claims = pointers(claims.Items)
	}
	if w, ok := p.(*buildbarn.BuildbarnWorker); ok && w.Spec.Scale != nil && w.DeletionTimestamp == nil {
		o.Queue, err = r.queue(ctx, w)
		if err != nil {
			o.QueueError = err.Error()
		}
	}
	return o, nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, 0, len(items))
	for i := range items {
		out = append(out, &items[i])
	}
	return out
}

func (r *reconciler) observeChildren(ctx context.Context, p buildbarn.Part, o *Observed) error {
	namespace, name := p.GetNamespace(), p.GetName()
	if r.sets {
		var s appsv1.StatefulSet
		if ok, err := r.get(ctx, namespace, name, &s); err != nil {
			return err
		} else if ok {
			o.StatefulSet = &s
		}
	} else {
		var d appsv1.Deployment
		if ok, err := r.get(ctx, namespace, name, &d); err != nil {
			return err
		} else if ok {
			o.Deployment = &d
		}
	}
	if r.service {
		var s corev1.Service
		if ok, err := r.get(ctx, namespace, name, &s); err != nil {
			return err
		} else if ok {
			o.Service = &s
		}
	}
	if !r.hosts {
		return nil
	}
	var i networkingv1.Ingress
	if ok, err := r.get(ctx, namespace, name, &i); err != nil {
		return err
	} else if ok {
		o.Ingress = &i
	}
	host := buildbarn.HostOf(p)
	if host == "" {
		return nil
	}
	var rivals networkingv1.IngressList
	if err := r.ByIndex(ctx, &rivals, "", indexHost, host); err != nil {
		return err
	}
	for _, rival := range pointers(rivals.Items) {
		if rival.Namespace != namespace || rival.Name != name {
			o.Rivals = append(o.Rivals, rival)
		}
	}
	return nil
}

// queue reads the queue of workers from the scheduler's pod.
func (r *reconciler) queue(ctx context.Context, w *buildbarn.BuildbarnWorker) (*metrics.Queue, error) {
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, w.Namespace, indexLabels, "scheduler/"+w.Spec.Scale.Scheduler); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp != nil || pod.Status.PodIP == "" || !isReady(pod) {
			continue
		}
		families, err := r.read(ctx, pod.Status.PodIP)
		if err != nil {
			// The same words each time: the status is not written for another port number.
			r.Log.Debug("cannot read a scheduler's metrics", "pod", pod.Name, "error", err)
			return nil, fmt.Errorf("the metrics of pod %s cannot be read from port %d: let its configuration serve them there (diagnosticsHttpServer with enablePrometheus)", pod.Name, buildbarn.PortMetrics)
		}
		return metrics.Of(metrics.Queues(families), w.Spec.Scale), nil
	}
	return nil, fmt.Errorf("the BuildbarnScheduler %s has no ready pod", w.Spec.Scale.Scheduler)
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
