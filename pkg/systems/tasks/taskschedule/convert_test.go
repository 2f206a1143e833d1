package taskschedule

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/cron"
)

var now = time.Date(2026, 1, 2, 10, 30, 20, 0, time.UTC)

func schedule(policy batchv1.ConcurrencyPolicy) *tasks.TaskSchedule {
	s := &tasks.TaskSchedule{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "ns",
			Name:              "s",
			UID:               "s",
			CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)),
		},
	}
	s.Spec.Schedule, s.Spec.ConcurrencyPolicy = "30 * * * *", policy
	s.Spec.TaskTemplate.Labels = map[string]string{"a": "b"}
	s.Spec.TaskTemplate.Spec = tasks.TaskSpec{Image: "i", Retries: 2}
	tasks.DefaultSchedule(s)
	return s
}

func TestARunIsATask(t *testing.T) {
	s := schedule("")
	a := cron.Plan(cron.Observed{CronJob: cronJob(s)}, now)
	require.NotNil(t, a.Create)
	task, err := taskOf(s, a.Create)
	require.NoError(t, err)
	require.Equal(t, "s-29455830", task.Name)
	require.Equal(t, s.Spec.TaskTemplate.Spec, task.Spec)
	require.Equal(t, map[string]string{"a": "b"}, task.Labels)
	require.Equal(t, map[string]string{ScheduledAt: "2026-01-02T10:30:00Z"}, task.Annotations)
	require.True(t, metav1.IsControlledBy(task, s))
	require.Equal(t, "TaskSchedule", task.OwnerReferences[0].Kind)
	a.Create.ObjectMeta = task.ObjectMeta
	status := statusOf(cron.Started(a.Status, a.Create, a.Scheduled))
	require.Equal(t, "Task", status.Active[0].Kind)
	require.Equal(t, task.Name, status.Active[0].Name)

	// If the task exists but the status was not written, the task is recorded and none is created.
	a = cron.Plan(cron.Observed{CronJob: cronJob(s), Jobs: []*batchv1.Job{job(task)}}, now)
	require.Nil(t, a.Create)
	require.NotNil(t, a.Status.LastScheduleTime)
}

func TestPoliciesAndHistory(t *testing.T) {
	going := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Name: "g", UID: "g"}, Status: tasks.TaskStatus{Phase: tasks.TaskRunning},
	}
	for policy, want := range map[batchv1.ConcurrencyPolicy]struct {
		created bool
		deleted int
	}{batchv1.AllowConcurrent: {true, 0}, batchv1.ForbidConcurrent: {false, 0}, batchv1.ReplaceConcurrent: {true, 1}} {
		s := schedule(policy)
		s.Status = statusOf(cron.Started(batchv1.CronJobStatus{}, job(going), now.Add(-time.Hour)))
		a := cron.Plan(cron.Observed{CronJob: cronJob(s), Jobs: []*batchv1.Job{job(going)}}, now)
		require.Equal(t, want.created, a.Create != nil, policy)
		require.Len(t, a.Delete, want.deleted, policy)
	}
	s := schedule("")
	s.Spec.FailedTasksHistoryLimit = new(int32)
	failed := going.DeepCopy()
	failed.Status.Phase = tasks.TaskFailed
	a := cron.Plan(cron.Observed{CronJob: cronJob(s), Jobs: []*batchv1.Job{job(failed)}}, now)
	require.Len(t, a.Delete, 1)
	require.Equal(t, cron.Event{Type: "Normal", Reason: "SawCompletedTask", Message: "Saw completed task: x"},
		said(cron.Event{Type: "Normal", Reason: "SawCompletedJob", Message: "Saw completed job: x"}))
}
