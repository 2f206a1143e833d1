package ttlafterfinished

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestPlan(t *testing.T) {
	job := func(ttl int32, t batchv1.JobConditionType, ago time.Duration) *batchv1.Job {
		j := &batchv1.Job{}
		if ttl >= 0 {
			j.Spec.TTLSecondsAfterFinished = &ttl
		}
		j.Status.Conditions = []batchv1.JobCondition{
			{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))},
		}
		return j
	}
	deleted := job(0, batchv1.JobComplete, time.Hour)
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	for name, c := range map[string]struct {
		job   *batchv1.Job
		del   bool
		again time.Duration
	}{
		"no limit":        {job: job(-1, batchv1.JobComplete, time.Hour)},
		"at once":         {job: job(0, batchv1.JobComplete, 0), del: true},
		"later":           {job: job(60, batchv1.JobFailed, 20*time.Second), again: 40 * time.Second},
		"expired":         {job: job(60, batchv1.JobFailed, 61*time.Second), del: true},
		"runs":            {job: job(0, batchv1.JobSuspended, time.Hour)},
		"failure target":  {job: job(0, batchv1.JobFailureTarget, time.Hour)},
		"deleted":         {job: deleted},
		"in the future":   {job: job(1, batchv1.JobComplete, -time.Minute), again: 61 * time.Second},
		"longest, 68 yrs": {job: job(1<<31-1, batchv1.JobComplete, 0), again: (1<<31 - 1) * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			del, again := Plan(c.job, now)
			require.Equal(t, c.del, del)
			require.Equal(t, c.again, again)
		})
	}
}
