package taskschedule

import (
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/cron"
)

// cronJob converts a schedule to a CronJob, and job a task to a Job, so that the rules for CronJobs apply to schedules.
// A schedule without times is converted to a suspended one: the history limits apply to it as well.
func cronJob(s *tasks.TaskSchedule) *batchv1.CronJob {
	suspend := s.Spec.Suspend
	if s.Spec.Schedule == "" {
		suspend = new(true)
	}
	return &batchv1.CronJob{
		ObjectMeta: s.ObjectMeta,
		Spec: batchv1.CronJobSpec{
			Schedule: s.Spec.Schedule, TimeZone: s.Spec.TimeZone, StartingDeadlineSeconds: s.Spec.StartingDeadlineSeconds,
			ConcurrencyPolicy: s.Spec.ConcurrencyPolicy, Suspend: suspend,
			SuccessfulJobsHistoryLimit: s.Spec.CompletedTasksHistoryLimit,
			FailedJobsHistoryLimit:     s.Spec.FailedTasksHistoryLimit,
		},
		Status: batchv1.CronJobStatus{
			Active: s.Status.Active, LastScheduleTime: s.Status.LastScheduleTime, LastSuccessfulTime: s.Status.LastCompletedTime,
		},
	}
}

func job(t *tasks.Task) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: t.ObjectMeta, Status: batchv1.JobStatus{StartTime: t.Status.CreatedAt}}
	var how batchv1.JobConditionType
	switch t.Status.Phase {
	case tasks.TaskCompleted:
		how = batchv1.JobComplete
		j.Status.CompletionTime = t.Status.FinishedAt
	case tasks.TaskFailed:
		how = batchv1.JobFailed
	default:
		return j
	}
	j.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue}}
	return j
}

func taskOf(s *tasks.TaskSchedule, run *batchv1.Job) (*tasks.Task, error) {
	t, err := s.NewTask(nil)
	if err != nil {
		return nil, err
	}
	t.Namespace, t.Name = s.Namespace, run.Name
	t.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s, kind)}
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[ScheduledAt] = run.Annotations[batchv1.CronJobScheduledTimestampAnnotation]
	return t, nil
}

func statusOf(s batchv1.CronJobStatus) tasks.TaskScheduleStatus {
	out := tasks.TaskScheduleStatus{LastScheduleTime: s.LastScheduleTime, LastCompletedTime: s.LastSuccessfulTime}
	for _, ref := range s.Active {
		ref.APIVersion, ref.Kind = tasks.GroupVersion.String(), "Task"
		out.Active = append(out.Active, ref)
	}
	return out
}

var words = strings.NewReplacer("Job", "Task", "job", "task")

func said(e cron.Event) cron.Event {
	e.Reason, e.Message = words.Replace(e.Reason), words.Replace(e.Message)
	return e
}
