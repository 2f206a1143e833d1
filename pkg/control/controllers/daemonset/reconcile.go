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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
			return (&reconciler{env, flowcontrol.NewBackOff(failedFirst, failedMost)}).reconcile
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
	out := make([]engine.Request, len(all.Items))
	for i := range all.Items {
		out[i] = engine.RequestFor(all.Items[i].Namespace, all.Items[i].Name)
	}
	return out
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

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var set appsv1.DaemonSet
	if err := r.Cache.Get(ctx, req.NamespacedName, &set); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if s := set.Spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		r.Events.Event(&set, corev1.EventTypeWarning, "SelectingAll",
			"This daemon set is selecting all pods. A non-empty selector is required.")
		return engine.Result{}, nil
	}
	if set.DeletionTimestamp != nil {
		return engine.Result{}, nil // its revisions may already be deleted, so the status cannot be computed
	}
	o, err := r.observe(ctx, &set)
	if err != nil {
		return engine.Result{}, err
	}
	a, err := Plan(o, r.Now())
	if err != nil {
		return engine.Result{}, err
	}
	step := history.Step{
		Own:    func() (bool, error) { return r.own(ctx, &set, a) },
		Pods:   func() error { return r.pods(ctx, &set, a) },
		Forget: a.Forget,
		More:   a.More,
		Again:  a.Again,
	}
	if !equality.Semantic.DeepEqual(a.Status, set.Status) {
		next := set.DeepCopy()
		next.Status = a.Status
		step.Status = next
	}
	return step.Carry(ctx, r.Env, req)
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
	o.Nodes = make([]*corev1.Node, len(nodes.Items))
	for i := range nodes.Items {
		o.Nodes[i] = &nodes.Items[i]
	}
	if o.Owned, err = podstate.ControlledBy(ctx, r.Env, set.Namespace, string(set.UID)); err != nil {
		return o, err
	}
	if o.Orphans, err = podstate.ControlledBy(ctx, r.Env, set.Namespace, engine.NoController); err != nil {
		return o, err
	}
	if o.OwnedRevisions, err = history.List(ctx, r.Env, set.Namespace, string(set.UID)); err != nil {
		return o, err
	}
	o.OrphanRevisions, err = history.List(ctx, r.Env, set.Namespace, engine.NoController)
	return o, err
}

// backoffKey contains the generation, so that a new template starts without back-off.
func backoffKey(set *appsv1.DaemonSet, node string) string {
	return fmt.Sprintf("%s/%d/%s", set.UID, set.Status.ObservedGeneration, node)
}

// own adopts and releases objects, and writes the current revision. settled is false if Plan must run again before
// pods are changed.
func (r *reconciler) own(ctx context.Context, set *appsv1.DaemonSet, a Actions) (settled bool, err error) {
	if err := podstate.Own(ctx, r.Client, set, kind, a.Pods); err != nil {
		return false, err
	}
	if err := history.Own(ctx, r.Client, set, kind, a.Revisions); err != nil {
		return false, err
	}
	if len(a.Revisions.Adopt) > 0 {
		return false, nil // the adopted revisions have changed
	}
	switch {
	case a.Create != nil:
		return false, history.Create(ctx, r.Client, set, a.Create, collisions)
	case a.Renumber != nil:
		next := a.Renumber.DeepCopy()
		if next.Labels == nil {
			next.Labels = map[string]string{}
		}
		if next.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == "" {
			next.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = next.Name // as upstream labels revisions without one
		}
		return false, history.Renumber(ctx, r.Client, next, a.Number)
	}
	for _, p := range a.Relabel {
		next := p.DeepCopy()
		next.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = a.Hash
		if err := client.IgnoreNotFound(r.Client.Patch(ctx, next, client.MergeFrom(p))); err != nil {
			return false, err
		}
	}
	return true, nil
}

func collisions(o client.Object) **int32 { return &o.(*appsv1.DaemonSet).Status.CollisionCount }

func (r *reconciler) pods(ctx context.Context, set *appsv1.DaemonSet, a Actions) error {
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
	created := engine.SlowStart(len(a.Run), func(i int) error {
		p := Pod(set, a.Hash, a.Run[i])
		err := r.Client.Create(ctx, p)
		switch {
		case err == nil:
			r.Events.Event(set, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", p.Name)
		case !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			r.Events.Event(set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err
	})
	if apierrors.HasStatusCause(created, corev1.NamespaceTerminatingCause) {
		return nil
	}
	deleted := engine.Parallel(len(a.Delete), func(i int) error {
		p := a.Delete[i]
		err := r.Client.Delete(ctx, p, engine.Preconditions(p))
		if err == nil {
			r.Events.Event(set, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
		} else if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			r.Events.Event(set, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
			return err
		}
		return nil
	})
	return errors.Join(created, deleted)
}
