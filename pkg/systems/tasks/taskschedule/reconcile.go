// Package taskschedule creates the tasks of TaskSchedules at their times, by the rules of CronJobs. Its invariant: each
// scheduled time has at most one task, even if the process is killed at any time.
package taskschedule

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/cron"
)

// ScheduledAt is the annotation of a task with its scheduled time (RFC 3339).
const ScheduledAt = "tasks.coracle.dev/scheduled-at"

var kind = tasks.GroupVersion.WithKind("TaskSchedule")

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "taskschedule",
		Watches: []engine.Watch{
			{Object: &tasks.TaskSchedule{}, Event: changed},
			{Object: &tasks.Task{}, Map: engine.Controller(kind.GroupKind()), Changed: func(was, is client.Object) bool {
				a, b := was.(*tasks.Task), is.(*tasks.Task)
				return a.Status.Phase.Ended() != b.Status.Phase.Ended() ||
					(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
					!equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
			}},
		},
		Writes: []engine.Write{
			{Object: &tasks.TaskSchedule{}, Parts: []engine.Part{engine.Status}},
			{Object: &tasks.Task{}, Parts: []engine.Part{engine.Create, engine.Delete}},
		},
		Indexes: []engine.Index{engine.ByController(&tasks.Task{})},
		Further: []rbacv1.PolicyRule{ // tasks with some fields need it
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}},
		},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{env}).reconcile
		},
	}
}

// changed maps a change of a schedule to itself. A new cron expression applies from its next time on: its earlier
// times do not count as missed.
func changed(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
	s, ok := is.(*tasks.TaskSchedule)
	if !ok {
		return nil
	}
	req := engine.RequestFor(s.Namespace, s.Name)
	before, ok := was.(*tasks.TaskSchedule)
	if ok &&
		(before.Spec.Schedule != s.Spec.Schedule || !equality.Semantic.DeepEqual(before.Spec.TimeZone, s.Spec.TimeZone)) {
		c := cronJob(s)
		if line, err := cron.Parse(c); err == nil {
			if wait := cron.Next(c, line, env.Now()); wait > 0 {
				env.Enqueue(req, wait)
				return nil
			}
		}
	}
	return []engine.Request{req}
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var s tasks.TaskSchedule
	if err := r.Cache.Get(ctx, req.NamespacedName, &s); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	var list tasks.TaskList
	if err := r.ByIndex(ctx, &list, s.Namespace, engine.ControllerIndex, string(s.UID)); err != nil {
		return engine.Result{}, err
	}
	o := cron.Observed{CronJob: cronJob(s.DeepCopy())}
	for i := range list.Items {
		o.Jobs = append(o.Jobs, job(&list.Items[i]))
	}
	a := cron.Plan(o, r.Now())
	for _, e := range a.Events {
		e = said(e)
		r.Events.Event(&s, e.Type, e.Reason, "%s", e.Message)
	}
	failed := r.apply(ctx, &s, &a)
	status := statusOf(a.Status)
	if a.Again > 0 {
		status.NextScheduleTime = new(metav1.NewTime(r.Now().Add(a.Again).Truncate(time.Second)))
	}
	if !equality.Semantic.DeepEqual(status, s.Status) {
		next := s.DeepCopy()
		next.Status = status
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
	}
	return engine.Result{RequeueAfter: a.Again}, failed
}

func (r *reconciler) apply(ctx context.Context, s *tasks.TaskSchedule, a *cron.Actions) error {
	for _, j := range a.Delete {
		t := &tasks.Task{ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: j.Name}}
		err := r.Client.Delete(ctx, t, engine.Preconditions(j), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			r.Events.Event(s, corev1.EventTypeWarning, "FailedDelete", "Error deleting task: %v", err)
			return err
		}
	}
	if a.Create == nil {
		return nil
	}
	t, err := taskOf(s, a.Create)
	if err != nil { // validation refuses such a schedule
		return err
	}
	err = r.Client.Create(ctx, t)
	switch {
	case err == nil:
		r.Events.Event(s, corev1.EventTypeNormal, "SuccessfulCreate", "Created task %v", t.Name)
		a.Create.ObjectMeta = t.ObjectMeta
		a.Status = cron.Started(a.Status, a.Create, a.Scheduled)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		// A foreign task with this name takes the place of this run. The schedule's own tasks are handled before.
		r.Events.Event(s, corev1.EventTypeWarning, "FailedCreate", "Error creating task: %v", err)
		a.Status.LastScheduleTime = new(metav1.Unix(a.Scheduled.Unix(), 0))
		return nil
	}
	r.Events.Event(s, corev1.EventTypeWarning, "FailedCreate", "Error creating task: %v", err)
	return err
}
