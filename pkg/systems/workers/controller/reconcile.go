// Package controller runs each Worker as a ReplicaSet with a Service, and scales the pods by the length of their
// queues. Its invariants: the pods of an earlier specification stay until the pods of the present one are ready, and a
// worker with messages has at least one pod.
package controller

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "worker", Workers: 2,
		Watches: []engine.Watch{
			{Object: &workers.Worker{}},
			{Object: &workers.Worker{}, Map: others, Changed: func(_, _ client.Object) bool { return false }},
			{Object: &appsv1.ReplicaSet{}, Map: engine.Controller(kind.GroupKind())},
			{Object: &corev1.Service{}, Map: named},
			{Object: &corev1.Pod{}, Map: labelled, Changed: counts},
		},
		Writes: []engine.Write{
			{Object: &workers.Worker{}, Parts: []engine.Part{engine.Status}},
			{Object: &appsv1.ReplicaSet{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Spec}},
			{Object: &corev1.Service{}, Parts: []engine.Part{engine.Create, engine.Spec}},
		},
		Indexes: []engine.Index{engine.ByController(&appsv1.ReplicaSet{}), engine.ByController(&corev1.Pod{})},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{env}).reconcile
		},
	}
}

// named maps a service to the worker that controls it, or else to the worker of the same name, whose service it blocks.
func named(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	if list := engine.Controller(kind.GroupKind())(ctx, env, o); len(list) > 0 {
		return list
	}
	if env.Cache.Get(ctx, client.ObjectKeyFromObject(o), &workers.Worker{}) != nil {
		return nil
	}
	return []engine.Request{engine.RequestFor(o.GetNamespace(), o.GetName())}
}

func labelled(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	if name := o.GetLabels()[workers.LabelWorker]; name != "" {
		return []engine.Request{engine.RequestFor(o.GetNamespace(), name)}
	}
	return nil
}

// others maps a worker that came or went to the workers whose messages or replies it gets.
func others(ctx context.Context, env engine.Env, o client.Object) (list []engine.Request) {
	var all workers.WorkerList
	if env.Cache.List(ctx, &all, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	for i := range all.Items {
		w := &all.Items[i]
		if d := &w.Spec.Delivery; d.DeadLetter == o.GetName() || d.Replies == o.GetName() {
			list = append(list, engine.RequestFor(w.Namespace, w.Name))
		}
	}
	return list
}

func counts(was, is client.Object) bool {
	a, b := was.(*corev1.Pod), is.(*corev1.Pod)
	if a.Labels[workers.LabelWorker] == "" && b.Labels[workers.LabelWorker] == "" {
		return false
	}
	return a.Status.Phase != b.Status.Phase || podstate.Ready(a) != podstate.Ready(b) ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) || waits(a) != waits(b)
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var w workers.Worker
	if err := r.Cache.Get(ctx, req.NamespacedName, &w); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if w.DeletionTimestamp != nil {
		return engine.Result{}, nil
	}
	o, err := r.observe(ctx, &w)
	if err != nil {
		return engine.Result{}, err
	}
	a := Plan(o, r.Now())
	if err := r.apply(ctx, a); err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return engine.Result{}, nil
		}
		return engine.Result{}, err
	}
	if !equality.Semantic.DeepEqual(a.Status, w.Status) {
		next := w.DeepCopy()
		next.Status = a.Status
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
	}
	return engine.Result{RequeueAfter: a.Again}, nil
}

func (r *reconciler) apply(ctx context.Context, a Actions) error {
	if s := a.CreateService; s != nil {
		if err := r.Client.Create(ctx, s); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	if s := a.UpdateService; s != nil {
		if err := r.Client.Update(ctx, s); err != nil {
			return err
		}
	}
	if s := a.CreateSet; s != nil {
		if err := r.Client.Create(ctx, s); err != nil {
			return err
		}
	}
	for _, s := range a.ScaleSets {
		if err := r.Client.Update(ctx, s); err != nil {
			return err
		}
	}
	for _, s := range a.DeleteSets {
		if err := r.Client.Delete(ctx, s, engine.Preconditions(s),
			client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil &&
			!apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

func (r *reconciler) observe(ctx context.Context, w *workers.Worker) (Observed, error) {
	o := Observed{Worker: w}
	var sets appsv1.ReplicaSetList
	if err := r.ByIndex(ctx, &sets, w.Namespace, engine.ControllerIndex, string(w.UID)); err != nil {
		return o, err
	}
	for i := range sets.Items {
		set := &sets.Items[i]
		o.Sets = append(o.Sets, set)
		var pods corev1.PodList
		if err := r.ByIndex(ctx, &pods, w.Namespace, engine.ControllerIndex, string(set.UID)); err != nil {
			return o, err
		}
		for j := range pods.Items {
			o.Pods = append(o.Pods, &pods.Items[j])
		}
	}
	var err error
	if o.NoDeadLetter, err = r.missing(ctx, w.Namespace, w.Spec.Delivery.DeadLetter); err != nil {
		return o, err
	}
	if o.NoReplies, err = r.missing(ctx, w.Namespace, w.Spec.Delivery.Replies); err != nil {
		return o, err
	}
	var s corev1.Service
	switch err := r.Cache.Get(ctx, client.ObjectKeyFromObject(w), &s); {
	case err == nil:
		o.Service = &s
	case !apierrors.IsNotFound(err):
		return o, err
	}
	return o, nil
}

// missing reports whether a worker that another one names does not exist.
func (r *reconciler) missing(ctx context.Context, namespace, name string) (bool, error) {
	if name == "" {
		return false, nil
	}
	err := r.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &workers.Worker{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}
