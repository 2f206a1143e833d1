// Package autoscaling scales the targets of HorizontalPodAutoscalers so that their metrics approach the target values.
// Its invariant: it never writes a replica count outside an autoscaler's bounds.
package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// period is upstream's sync period of an autoscaler (--horizontal-pod-autoscaler-sync-period).
const period = 15 * time.Second

const attempts = 5

// Metrics returns the resource usage of running pods. It omits pods without usage data.
type Metrics interface {
	Pods(ctx context.Context, pods []*corev1.Pod) []*metricsv1beta1.PodMetrics
}

// New declares the reconciler. A nil adapters means that there are no custom or external metrics.
func New(metrics Metrics, adapters Adapters) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "autoscaling", Account: "horizontal-pod-autoscaler", Workers: 5,
		Watches: []engine.Watch{{Object: &autoscalingv2.HorizontalPodAutoscaler{}, Changed: engine.SpecChanged}},
		Reads:   []client.Object{&corev1.Pod{}},
		Writes: []engine.Write{
			{Object: &autoscalingv2.HorizontalPodAutoscaler{}, Parts: []engine.Part{engine.Status}},
			{Parts: []engine.Part{engine.Spec}}, // the scale of any kind
		},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{
				Env:      env,
				metrics:  metrics,
				adapters: adapters,
				memory:   map[types.NamespacedName]*memory{},
			}).reconcile
		},
	}
}

type memory struct {
	uid      types.UID
	history  History
	selector labels.Selector // selects the target's pods; nil before the first reconcile
}

type reconciler struct {
	engine.Env
	metrics  Metrics
	adapters Adapters
	mu       sync.Mutex
	memory   map[types.NamespacedName]*memory
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var hpa autoscalingv2.HorizontalPodAutoscaler
	if err := r.Cache.Get(ctx, req.NamespacedName, &hpa); err != nil {
		if apierrors.IsNotFound(err) {
			r.mu.Lock()
			delete(r.memory, req.NamespacedName)
			r.mu.Unlock()
		}
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	a, err := r.decide(ctx, req.NamespacedName, &hpa)
	if err != nil {
		return engine.Result{}, err
	}
	for _, e := range a.Events {
		r.Events.Event(&hpa, e.Type, e.Reason, "%s", e.Message)
	}
	if a.Err != nil {
		r.Log.Debug("could not autoscale", "autoscaler", req.String(), "error", a.Err)
	}
	return engine.Result{RequeueAfter: period},
		client.IgnoreNotFound(engine.SetStatus(ctx, r.Client, &hpa, &hpa.Status, a.Status))
}

func (r *reconciler) decide(ctx context.Context, key types.NamespacedName,
	hpa *autoscalingv2.HorizontalPodAutoscaler) (Actions, error) {
	target, scale, err := r.scale(ctx, hpa)
	if err != nil {
		return Unreachable(hpa, err, r.Now()), nil
	}
	m := r.remember(key, hpa.UID)
	o := Observed{Autoscaler: hpa, Scale: scale, History: m.history}
	if err := r.observe(ctx, key, &o); err != nil {
		return Actions{}, err
	}
	a := Plan(o, r.Now())
	if a.Rescale {
		a.Rescaled(o, r.write(ctx, target, scale, a.Replicas), r.Now())
	}
	r.mu.Lock()
	m.history = a.History
	r.mu.Unlock()
	return a, nil
}

func (r *reconciler) remember(key types.NamespacedName, uid types.UID) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memory[key]
	if m == nil || m.uid != uid {
		m = &memory{uid: uid}
		r.memory[key] = m
	}
	return m
}

func (r *reconciler) scale(ctx context.Context,
	hpa *autoscalingv2.HorizontalPodAutoscaler) (schema.GroupVersionKind, *autoscalingv1.Scale, error) {
	ref := hpa.Spec.ScaleTargetRef
	var none schema.GroupVersionKind
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return none, nil, err
	}
	mappings, err := r.Client.RESTMapper().RESTMappings(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if err != nil {
		return none, nil, err
	}
	var first error
	for _, m := range mappings {
		scale, err := engine.Scale(ctx, r.Client, m.GroupVersionKind, client.ObjectKey{
			Namespace: hpa.Namespace, Name: ref.Name,
		})
		if err == nil {
			return m.GroupVersionKind, scale, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = errors.New("unrecognized resource")
	}
	return none, nil, first
}

func (r *reconciler) observe(ctx context.Context, key types.NamespacedName, o *Observed) error {
	text := o.Scale.Status.Selector
	if text == "" {
		o.Unselectable, o.UnselectableReason, o.UnselectableEvent = "selector is "+
			"required", "InvalidSelector", "SelectorRequired"
		return nil
	}
	selector, err := labels.Parse(text)
	if err != nil {
		o.Unselectable = fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		o.UnselectableReason, o.UnselectableEvent = "InvalidSelector", "InvalidSelector"
		return nil
	}
	var list corev1.PodList
	if err := r.Cache.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingLabelsSelector{
		Selector: selector,
	}); err != nil {
		return err
	}
	var running []*corev1.Pod
	for i := range list.Items {
		p := &list.Items[i]
		o.Pods = append(o.Pods, p)
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			running = append(running, p)
		}
	}
	if rival := r.rival(key, selector, o.Pods); rival != nil {
		o.Unselectable = fmt.Sprintf("pods by selector %v are controlled by more than one HPA (e.g. %v)", text,
			[]types.NamespacedName{key, *rival})
		o.UnselectableReason, o.UnselectableEvent = "AmbiguousSelector", "AmbiguousSelector"
		return nil
	}
	o.Values = r.values(ctx, key.Namespace, text, o.Autoscaler.Spec.Metrics, running)
	return nil
}

// rival records an autoscaler's selector. It returns another autoscaler whose selector matches one of the pods, or nil.
func (r *reconciler) rival(key types.NamespacedName, selector labels.Selector,
	pods []*corev1.Pod) *types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.memory[key]; m != nil {
		m.selector = selector
	}
	for other, m := range r.memory {
		if other == key || other.Namespace != key.Namespace || m.selector == nil {
			continue
		}
		for _, p := range pods {
			if m.selector.Matches(labels.Set(p.Labels)) {
				return &other
			}
		}
	}
	return nil
}

// Upstream's errors for APIs that are not served.
var (
	errNoResourceMetrics = errors.New("no metrics returned from resource metrics API")
	errNoCustomMetrics   = errors.New("unable to fetch metrics from custom metrics API: no custom metrics API " +
		"(custom.metrics.k8s.io) registered")
)

// values reads the metrics of the pods that selector matches. It requests the pods' usage at most once.
func (r *reconciler) values(ctx context.Context, namespace, selector string, specs []autoscalingv2.MetricSpec,
	pods []*corev1.Pod) []Value {
	var usage []*metricsv1beta1.PodMetrics
	asked := false
	ask := func() []*metricsv1beta1.PodMetrics {
		if !asked && r.metrics != nil {
			usage = r.metrics.Pods(ctx, pods)
		}
		asked = true
		return usage
	}
	out := make([]Value, len(specs))
	for i := range specs {
		s := &specs[i]
		switch {
		case s.Resource != nil:
			out[i] = usageOf(ask(), s.Resource.Name, "")
		case s.ContainerResource != nil:
			out[i] = usageOf(ask(), s.ContainerResource.Name, s.ContainerResource.Container)
		case s.Pods != nil:
			out[i] = r.ofPods(ctx, namespace, selector, s.Pods.Metric)
		case s.Object != nil:
			out[i] = r.ofObject(ctx, namespace, s.Object)
		case s.External != nil:
			out[i] = r.external(ctx, namespace, s.External.Metric)
		}
	}
	return out
}

// usageOf returns the pods' usage of a resource, in total or in one container. It omits pods with an incomplete sample.
func usageOf(list []*metricsv1beta1.PodMetrics, of corev1.ResourceName, inContainer string) Value {
	if len(list) == 0 {
		return Value{Err: fmt.Errorf("unable to fetch metrics from resource metrics API: %w", errNoResourceMetrics)}
	}
	v := Value{Samples: make(map[string]Sample, len(list))}
	for _, m := range list {
		s, found := Sample{At: m.Timestamp.Time, Window: m.Window.Duration}, false
		complete := true
		for _, c := range m.Containers {
			if inContainer != "" && c.Name != inContainer {
				continue
			}
			q, ok := c.Usage[of]
			complete = complete && ok
			s.Value, found = s.Value+q.MilliValue(), true
		}
		if found && complete {
			v.Samples[m.Name] = s
		}
	}
	return v
}

// write writes the target's replica count. It retries conflicts.
func (r *reconciler) write(ctx context.Context, target schema.GroupVersionKind, scale *autoscalingv1.Scale,
	replicas int32) error {
	for n := 1; ; n++ {
		next := scale.DeepCopy()
		next.Spec.Replicas = replicas
		err := engine.WriteScale(ctx, r.Client, target, next)
		if !apierrors.IsConflict(err) || n == attempts {
			return err
		}
		if scale, err = engine.Scale(ctx, r.Client, target, client.ObjectKeyFromObject(scale)); err != nil {
			return err
		}
	}
}
