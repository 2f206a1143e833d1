// Package deployment rolls out a Deployment's pods through ReplicaSets, according to its strategy. Its invariant: no
// step removes more available pods, or requests more pods in total, than the strategy allows.
package deployment

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

var (
	kind    = appsv1.SchemeGroupVersion.WithKind("Deployment")
	setKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "deployment", Workers: 4,
		Watches: []engine.Watch{
			{Object: &appsv1.Deployment{}},
			{Object: &appsv1.ReplicaSet{}, Map: deployments},
			{Object: &corev1.Pod{}, Map: recreated, Changed: func(was, is client.Object) bool { return false }},
		},
		Writes: []engine.Write{
			{Object: &appsv1.Deployment{}, Parts: []engine.Part{engine.Status, engine.Metadata}},
			{Object: &appsv1.ReplicaSet{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata}},
		},
		Indexes: []engine.Index{engine.ByController(&appsv1.ReplicaSet{}), engine.ByController(&corev1.Pod{})},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env}).reconcile)
		},
	}
}

var (
	byController    = engine.Controller(kind.GroupKind())
	setByController = engine.Controller(setKind.GroupKind())
)

// deployments maps a set to its controller or, without one, to the deployments that could adopt it.
var deployments = engine.ControllerOrAdopters(kind.GroupKind(), func() client.ObjectList {
	return &appsv1.DeploymentList{}
},
	func(o client.Object) *metav1.LabelSelector { return o.(*appsv1.Deployment).Spec.Selector })

// recreated maps a deleted pod to its deployment, if that uses the Recreate strategy and may wait for the deletion.
func recreated(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	for _, set := range setByController(ctx, env, o) {
		var rs appsv1.ReplicaSet
		if env.Cache.Get(ctx, set.NamespacedName, &rs) != nil {
			continue
		}
		for _, req := range byController(ctx, env, &rs) {
			var d appsv1.Deployment
			if env.Cache.Get(ctx, req.NamespacedName, &d) == nil &&
				d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
				return []engine.Request{req}
			}
		}
	}
	return nil
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, d *appsv1.Deployment) (engine.Result, error) {
	o, err := r.observe(ctx, d)
	if err != nil {
		return engine.Result{}, err
	}
	a, err := Plan(o, r.Now())
	if err != nil {
		return engine.Result{}, err
	}
	if s := d.Spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		r.Events.Event(d, corev1.EventTypeWarning, "SelectingAll",
			"This deployment is selecting all pods. A non-empty selector is required.")
	}
	if err := engine.Own(ctx, r.Client, d, kind, a.Claimed); err != nil {
		return engine.Result{}, err
	}
	if len(a.Adopt) > 0 {
		r.Enqueue(engine.RequestFor(d.Namespace, d.Name), 0) // the plan is about sets that have changed
		return engine.Result{}, nil
	}
	if err := r.sets(ctx, d, a); err != nil {
		return engine.Result{}, err
	}
	if a.Annotations != nil {
		next := d.DeepCopy()
		next.Annotations = a.Annotations
		if err := r.Client.Update(ctx, next); err != nil {
			return engine.Result{}, err
		}
		d = next
	}
	return engine.Result{RequeueAfter: a.Again}, engine.SetStatus(ctx, r.Client, d, &d.Status, a.Status)
}

func (r *reconciler) observe(ctx context.Context, d *appsv1.Deployment) (o Observed, err error) {
	o.Deployment = d
	if o.Owned, err = r.list(ctx, d.Namespace, string(d.UID)); err != nil {
		return o, err
	}
	if o.Orphans, err = r.list(ctx, d.Namespace, engine.NoController); err != nil {
		return o, err
	}
	if d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		return o, nil
	}
	o.Pods = map[string][]*corev1.Pod{}
	for _, rs := range o.Owned {
		var pods corev1.PodList
		if err := r.ByIndex(ctx, &pods, d.Namespace, engine.ControllerIndex, string(rs.UID)); err != nil {
			return o, err
		}
		o.Pods[string(rs.UID)] = engine.Pointers(pods.Items)
	}
	return o, nil
}

func (r *reconciler) list(ctx context.Context, namespace, controller string) ([]*appsv1.ReplicaSet, error) {
	var list appsv1.ReplicaSetList
	if err := r.ByIndex(ctx, &list, namespace, engine.ControllerIndex, controller); err != nil {
		return nil, err
	}
	return engine.Pointers(list.Items), nil
}

func (r *reconciler) sets(ctx context.Context, d *appsv1.Deployment, a Actions) error {
	scaled := func(name string) {
		for _, s := range a.Scaled {
			if s.Set != name {
				continue
			}
			way := "up"
			if s.To < s.From {
				way = "down"
			}
			r.Events.Event(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", way, name,
				s.From, s.To)
		}
	}
	if rs := a.Create; rs != nil {
		err := r.Client.Create(ctx, rs.DeepCopy())
		switch {
		case apierrors.IsAlreadyExists(err):
			return r.collided(ctx, d, rs)
		case engine.Terminating(err):
			return err
		case err != nil:
			return r.refused(ctx, d, rs, err)
		}
		scaled(rs.Name)
	}
	for _, rs := range a.Update {
		if err := r.Client.Update(ctx, rs); err != nil {
			return client.IgnoreNotFound(err)
		}
		scaled(rs.Name)
	}
	for _, rs := range a.Delete {
		if err := engine.Remove(ctx, r.Client, rs); err != nil {
			return err
		}
	}
	return nil
}

// collided increments the collision count if another set has the new set's name. If it is the wanted set itself,
// the cache was stale, and a retry will see the set.
func (r *reconciler) collided(ctx context.Context, d *appsv1.Deployment, want *appsv1.ReplicaSet) error {
	var there appsv1.ReplicaSet
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), &there); err != nil {
		return err
	}
	if ref := metav1.GetControllerOfNoCopy(&there); ref != nil && ref.UID == d.UID &&
		sameTemplate(&there.Spec.Template, &want.Spec.Template) {
		return apierrors.NewConflict(appsv1.Resource("replicasets"), want.Name, nil)
	}
	status, collisions := d.Status, int32(1)
	if was := status.CollisionCount; was != nil {
		collisions += *was
	}
	status.CollisionCount = &collisions
	if err := engine.SetStatus(ctx, r.Client, d, &d.Status, status); err != nil {
		return err
	}
	return apierrors.NewAlreadyExists(appsv1.Resource("replicasets"), want.Name)
}

// refused records in the status that the new set could not be created.
func (r *reconciler) refused(ctx context.Context, d *appsv1.Deployment, rs *appsv1.ReplicaSet, err error) error {
	p := &plan{d: d, now: r.Now(), status: *d.Status.DeepCopy()}
	if p.hasDeadline() {
		message := "Failed to create new replica set \"" + rs.Name + "\": " + err.Error()
		p.condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "ReplicaSetCreateError", message)
		r.Events.Event(d, corev1.EventTypeWarning, "ReplicaSetCreateError", "%s", message)
		_ = engine.SetStatus(ctx, r.Client, d, &d.Status, p.status) // err is returned and retried
	}
	return err
}
