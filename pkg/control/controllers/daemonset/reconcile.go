// Package daemonset runs a pod of a DaemonSet on every eligible node. Each pod requires its node by name, and the
// scheduler binds it. Its invariant: it deletes only pods that the set controls. A rolling update never makes more pods
// unavailable, nor creates more extra ones, than its strategy allows.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/history"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// The back-off for replacing a failed pod on a node starts at failedFirst and is at most failedMost.
const (
	failedFirst = time.Second
	failedMost  = 15 * time.Minute
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "daemonset", Account: "daemon-set-controller", Workers: 4,
		Watches: []engine.Watch{
			{Object: &appsv1.DaemonSet{}},
			{Object: &corev1.Pod{}, Map: sets, Batch: owner},
			{Object: &corev1.Node{}, Map: all, Batch: func(client.Object) string { return "" }, Changed: placementChanged},
			{Object: &appsv1.ControllerRevision{}, Event: revisionChanged},
		},
		Writes: []engine.Write{
			{Object: &appsv1.DaemonSet{}, Parts: []engine.Part{engine.Status}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Metadata}},
			history.Writes(),
		},
		Indexes: []engine.Index{engine.ByController(&corev1.Pod{}), engine.ByController(&appsv1.ControllerRevision{})},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env, flowcontrol.NewBackOff(failedFirst, failedMost)}).reconcile)
		},
	}
}

// owner returns the key for batching pod events: the UID of the controller or, without one, the pod's name.
func owner(o client.Object) string {
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return string(ref.UID)
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// sets maps a pod to its controller or, without one, to the sets that could adopt it.
var sets = engine.ControllerOrAdopters(kind.GroupKind(), func() client.ObjectList { return &appsv1.DaemonSetList{} },
	func(o client.Object) *metav1.LabelSelector { return o.(*appsv1.DaemonSet).Spec.Selector })

func all(ctx context.Context, env engine.Env, _ client.Object) []engine.Request {
	var all appsv1.DaemonSetList
	if env.Cache.List(ctx, &all) != nil {
		return nil
	}
	return engine.Requests(all.Items, nil)
}

// placementChanged reports whether a node's labels or taints changed. Heartbeats are irrelevant.
func placementChanged(was, is client.Object) bool {
	a, ok1 := was.(*corev1.Node)
	b, ok2 := is.(*corev1.Node)
	return !ok1 || !ok2 || !equality.Semantic.DeepEqual(a.Labels, b.Labels) ||
		!equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}

var controllerOf = engine.Controller(kind.GroupKind())

// revisionChanged maps a changed or deleted revision to its set. As upstream, it ignores new ones: the set created
// it, or it is a copy that the set's next reconcile adopts.
func revisionChanged(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if was == nil {
		return nil
	}
	sets := controllerOf(ctx, env, was)
	if is != nil {
		sets = append(sets, controllerOf(ctx, env, is)...)
	}
	return sets
}

type reconciler struct {
	engine.Env
	failed *flowcontrol.Backoff
}

func (r *reconciler) reconcile(ctx context.Context, set *appsv1.DaemonSet) (engine.Result, error) {
	if s := set.Spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		r.Events.Event(set, corev1.EventTypeWarning, "SelectingAll",
			"This daemon set is selecting all pods. A non-empty selector is required.")
		return engine.Result{}, nil
	}
	if set.DeletionTimestamp != nil {
		return engine.Result{}, nil // its revisions may already be deleted, so the status cannot be computed
	}
	o, err := r.observe(ctx, set)
	if err != nil {
		return engine.Result{}, err
	}
	a, err := Plan(o, r.Now())
	if err != nil {
		return engine.Result{}, err
	}
	return a.Carry(ctx, r.Env, history.Workload{Object: set, Kind: kind, Collisions: &set.Status.CollisionCount},
		func() error { return r.pods(ctx, set, a) },
		func() error { return engine.SetStatus(ctx, r.Client, set, &set.Status, a.Status) })
}

func (r *reconciler) observe(ctx context.Context, set *appsv1.DaemonSet) (o Observed, err error) {
	o.Set = set
	o.Wait = func(node string) time.Duration {
		key := backoffKey(set, node)
		if now := r.Now(); r.failed.IsInBackOffSinceUpdate(key, now) {
			return r.failed.Get(key)
		}
		return 0
	}
	var nodes corev1.NodeList
	if err := r.Cache.List(ctx, &nodes); err != nil {
		return o, err
	}
	o.Nodes = engine.Pointers(nodes.Items)
	o.Dependents, err = history.Observe(ctx, r.Env, set)
	return o, err
}

// backoffKey contains the generation, so that a new template starts without back-off.
func backoffKey(set *appsv1.DaemonSet, node string) string {
	return fmt.Sprintf("%s/%d/%s", set.UID, set.Status.ObservedGeneration, node)
}

func (r *reconciler) pods(ctx context.Context, set *appsv1.DaemonSet, a Actions) error {
	for _, p := range a.Relabel {
		next := p.DeepCopy()
		next.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = a.Hash
		if err := client.IgnoreNotFound(r.Client.Patch(ctx, next, client.MergeFrom(p))); err != nil {
			return err
		}
	}
	for _, p := range a.Ended {
		if p.Status.Phase == corev1.PodFailed {
			r.failed.GC()
			r.failed.Next(backoffKey(set, target(p)), r.Now())
			r.Events.Event(set, corev1.EventTypeWarning, "FailedDaemonPod",
				"Found failed daemon pod %s/%s on node %s, will try to kill it", p.Namespace, p.Name, target(p))
		} else {
			r.Events.Event(set, corev1.EventTypeNormal, "SucceededDaemonPod",
				"Found succeeded daemon pod %s/%s on node %s, will try to delete it", p.Namespace, p.Name, target(p))
		}
	}
	return errors.Join(
		engine.SlowStart(len(a.Run), func(i int) error {
			return podstate.Create(ctx, r.Env, set, Pod(set, a.Hash, a.Run[i]))
		}),
		podstate.Delete(ctx, r.Env, set, a.Delete))
}
