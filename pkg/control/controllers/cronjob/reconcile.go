// Package cronjob creates the Jobs of CronJobs at their scheduled times. Its invariant: each scheduled time has at most
// one Job, even if the process is killed at any time.
package cronjob

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/cron"
)

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "cronjob", Workers: 2,
		Watches: []engine.Watch{
			{Object: &batchv1.CronJob{}, Event: changed},
			{Object: &batchv1.Job{}, Map: engine.Controller(kind.GroupKind()), Changed: func(was, is client.Object) bool {
				a, b := was.(*batchv1.Job), is.(*batchv1.Job)
				return cron.Ended(a) != cron.Ended(b) || !equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) ||
					(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil)
			}},
		},
		Writes: []engine.Write{
			{Object: &batchv1.CronJob{}, Parts: []engine.Part{engine.Status}},
			{Object: &batchv1.Job{}, Parts: []engine.Part{engine.Create, engine.Delete}},
		},
		Indexes: []engine.Index{engine.ByController(&batchv1.Job{})},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env, env.ByIndex}).reconcile)
		},
	}
}

// changed maps a CronJob to itself. A new schedule takes effect with its next run: past times at which it would
// have run do not count as missed.
func changed(_ context.Context, env engine.Env, was, is client.Object) []engine.Request {
	c, ok := is.(*batchv1.CronJob)
	if !ok {
		return nil
	}
	req := engine.RequestFor(c.Namespace, c.Name)
	before, ok := was.(*batchv1.CronJob)
	if ok &&
		(before.Spec.Schedule != c.Spec.Schedule || !equality.Semantic.DeepEqual(before.Spec.TimeZone, c.Spec.TimeZone)) {
		if s, err := cron.Parse(c); err == nil {
			if wait := cron.Next(c, s, env.Now()); wait > 0 {
				env.Enqueue(req, wait)
				return nil
			}
		}
	}
	return []engine.Request{req}
}

type reconciler struct {
	engine.Env
	find func(ctx context.Context, list client.ObjectList, namespace, index, value string) error
}

func (r *reconciler) reconcile(ctx context.Context, c *batchv1.CronJob) (engine.Result, error) {
	var list batchv1.JobList
	if err := r.find(ctx, &list, c.Namespace, engine.ControllerIndex, string(c.UID)); err != nil {
		return engine.Result{}, err
	}
	a := cron.Plan(cron.Observed{CronJob: c, Jobs: engine.Pointers(list.Items)}, r.Now())
	for _, e := range a.Events {
		r.Events.Event(c, e.Type, e.Reason, "%s", e.Message)
	}
	failed := r.apply(ctx, c, &a)
	if err := engine.SetStatus(ctx, r.Client, c, &c.Status, a.Status); err != nil {
		return engine.Result{}, err
	}
	return engine.Result{RequeueAfter: a.Again}, failed
}

// apply deletes and creates Jobs, and records the new Job in a.Status.
func (r *reconciler) apply(ctx context.Context, c *batchv1.CronJob, a *cron.Actions) error {
	for _, j := range a.Delete {
		err := r.Client.Delete(ctx, j, engine.Preconditions(j), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			r.Events.Event(c, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
			return err
		}
		r.Events.Event(c, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", j.Name)
	}
	if a.Create == nil {
		return nil
	}
	err := r.Client.Create(ctx, a.Create)
	switch {
	case err == nil:
		r.Events.Event(c, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", a.Create.Name)
		a.Status = cron.Started(a.Status, a.Create, a.Scheduled)
		return nil
	case engine.Terminating(err):
		return err
	case apierrors.IsAlreadyExists(err):
		// A Job with this name and another owner takes the place of this run. Plan has already handled the
		// CronJob's own Jobs.
		r.Events.Event(c, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		a.Status.LastScheduleTime = new(metav1.Unix(a.Scheduled.Unix(), 0))
		return nil
	}
	r.Events.Event(c, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
	return err
}
