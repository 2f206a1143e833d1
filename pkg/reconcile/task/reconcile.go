// Package task runs each task as one pod, whose termination ends the task.
//
// It may import engine and apis. Its invariant: a task has at most one pod in its lifetime.
package task

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
)

var kind = tasks.GroupVersion.WithKind("Task")

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "task", Workers: 4,
		Watches: []engine.Watch{
			{Object: &tasks.Task{}},
			{Object: &corev1.Pod{}, Map: engine.Controller(kind.GroupKind())},
			{Object: &corev1.Node{}, Event: lostTasks},
		},
		Writes: []engine.Write{
			{Object: &tasks.Task{}, Parts: []engine.Part{engine.Status}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Create, engine.Delete}},
		},
		Indexes: []engine.Index{engine.ByController(&corev1.Pod{})},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{env}).reconcile
		},
	}
}

// lost reports whether a node no longer sends status.
func lost(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].Status == corev1.ConditionUnknown
		}
	}
	return false
}

// lostTasks returns requests for the tasks of a lost node.
func lostTasks(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	o := is
	if o == nil {
		o = was
	}
	n, ok := o.(*corev1.Node)
	if !ok || is != nil && !lost(n) {
		return nil
	}
	if b, ok := was.(*corev1.Node); ok && is != nil && lost(b) {
		return nil // known
	}
	var all tasks.TaskList
	if env.Cache.List(ctx, &all) != nil {
		return nil
	}
	var out []engine.Request
	for i := range all.Items {
		if t := &all.Items[i]; t.Status.Node == n.Name && !t.Status.Phase.Ended() {
			out = append(out, engine.RequestFor(t.Namespace, t.Name))
		}
	}
	return out
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var t tasks.Task
	if err := r.Cache.Get(ctx, req.NamespacedName, &t); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	if t.Status.Phase.Ended() || t.DeletionTimestamp != nil {
		return engine.Result{}, nil
	}
	o, err := r.observe(ctx, &t)
	if err != nil {
		return engine.Result{}, err
	}
	a := Plan(o, r.Now())
	if a.Create {
		p, err := r.create(ctx, &t)
		if err != nil {
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return engine.Result{}, nil
			}
			if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
				return engine.Result{}, err
			}
			a.Status.Phase, a.Status.Error = tasks.TaskFailed, err.Error()
			at := metav1.NewTime(r.Now())
			a.Status.FinishedAt = &at
		} else {
			a.Status.PodName = p.Name
		}
	}
	if !equality.Semantic.DeepEqual(a.Status, t.Status) {
		next := t.DeepCopy()
		next.Status = a.Status
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
	}
	if a.Stop {
		if err := r.Client.Delete(ctx, o.Pod, engine.Preconditions(o.Pod)); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return engine.Result{}, err
		}
	}
	return engine.Result{RequeueAfter: a.Again}, nil
}

func (r *reconciler) observe(ctx context.Context, t *tasks.Task) (o Observed, err error) {
	o.Task = t
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, t.Namespace, engine.ControllerIndex, string(t.UID)); err != nil {
		return o, err
	}
	if len(pods.Items) == 0 {
		return o, nil
	}
	o.Pod = &pods.Items[0]
	if o.Pod.Spec.NodeName == "" {
		return o, nil
	}
	var n corev1.Node
	switch err := r.Cache.Get(ctx, client.ObjectKey{Name: o.Pod.Spec.NodeName}, &n); {
	case apierrors.IsNotFound(err):
		o.NodeLost = true
	case err != nil:
		return o, err
	default:
		o.NodeLost = lost(&n)
	}
	return o, nil
}

// create creates the task's pod.
func (r *reconciler) create(ctx context.Context, t *tasks.Task) (*corev1.Pod, error) {
	p := tasks.Pod(t, attempt)
	err := r.Client.Create(ctx, p)
	if !apierrors.IsAlreadyExists(err) {
		return p, err
	}
	var there corev1.Pod
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(p), &there); err != nil {
		return nil, err
	}
	if ref := metav1.GetControllerOfNoCopy(&there); ref != nil && ref.UID == t.UID {
		return &there, nil
	}
	return nil, err
}
