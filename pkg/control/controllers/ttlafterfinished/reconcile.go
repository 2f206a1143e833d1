// Package ttlafterfinished deletes finished Jobs after their ttlSecondsAfterFinished (KEP-592). Its invariant: it
// deletes no unfinished Job, and no Job that has changed since it was read.
package ttlafterfinished

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "ttlafterfinished", Account: "ttl-after-finished-controller", Workers: 2,
		Watches: []engine.Watch{
			{Object: &batchv1.Job{}, Event: func(_ context.Context, _ engine.Env, _, is client.Object) []engine.Request {
				if j, ok := is.(*batchv1.Job); ok && expires(j) {
					return []engine.Request{engine.RequestFor(j.Namespace, j.Name)}
				}
				return nil
			}},
		},
		Writes: []engine.Write{{Object: &batchv1.Job{}, Parts: []engine.Part{engine.Delete}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, j *batchv1.Job) (engine.Result, error) {
				del, again := Plan(j, env.Now())
				if !del {
					return engine.Result{RequeueAfter: again}, nil
				}
				// If ttlSecondsAfterFinished has changed since, the delete conflicts and is retried.
				return engine.Result{}, env.Client.Delete(ctx, j, engine.Unchanged(j),
					client.PropagationPolicy(metav1.DeletePropagationForeground))
			})
		},
	}
}

// Plan decides whether to delete the Job now and, if not, after how long. An again of 0 means never.
func Plan(j *batchv1.Job, now time.Time) (del bool, again time.Duration) {
	if !expires(j) {
		return false, 0
	}
	left := finishedAt(j).Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second).Sub(now)
	return left <= 0, max(left, 0)
}

func expires(j *batchv1.Job) bool {
	return j.DeletionTimestamp == nil && j.Spec.TTLSecondsAfterFinished != nil && !finishedAt(j).IsZero()
}

// finishedAt returns when the Job completed or failed, or the zero time.
func finishedAt(j *batchv1.Job) time.Time {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
