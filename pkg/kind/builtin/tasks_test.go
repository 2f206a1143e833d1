package builtin

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

func TestTheAttemptWhoseLogIsAskedFor(t *testing.T) {
	one, two := int32(1), int32(2)
	task := &tasks.Task{Status: tasks.TaskStatus{Phase: tasks.TaskPending, Error: "attempt 2 failed: exit code 1", Attempts: []tasks.TaskAttempt{
		{Number: 1, Node: "n", PodUID: "a", Index: &one}, {Number: 2, Node: "n", PodUID: "b", Index: &one}, {Number: 1, Node: "n", PodUID: "c", Index: &two}, {Number: 3, Index: &one},
	}}}
	for query, want := range map[string]string{"": "c", "index=1": "b", "index=1&attempt=1": "a", "attempt=2": "b"} {
		q, err := url.ParseQuery(query)
		require.NoError(t, err)
		a, err := loggedAttempt(task, q)
		require.NoError(t, err)
		require.EqualValues(t, want, a.PodUID, query)
	}
	for query, want := range map[string]string{"attempt=3": "no such attempt", "index=9": "no such attempt", "attempt=x": "not a number", "attempt=0": "not a number of 1", "index=-1": "not a number of 0"} {
		q, err := url.ParseQuery(query)
		require.NoError(t, err)
		_, err = loggedAttempt(task, q)
		require.ErrorContains(t, err, want, query)
	}
	task.Status.Attempts = nil
	_, err := loggedAttempt(task, nil)
	require.ErrorContains(t, err, "it is Pending: attempt 2 failed")
}

func TestSchedulesNameTheField(t *testing.T) {
	zone, local := "Moon/Base", "Local"
	for name, c := range map[string]struct {
		change func(*tasks.TaskScheduleSpec)
		want   string
	}{
		"line":     {func(s *tasks.TaskScheduleSpec) { s.Schedule = "now and then" }, "spec.schedule"},
		"panics":   {func(s *tasks.TaskScheduleSpec) { s.Schedule = "TZ=0" }, "spec.schedule"},
		"zone":     {func(s *tasks.TaskScheduleSpec) { s.TimeZone = &zone }, "spec.timeZone"},
		"local":    {func(s *tasks.TaskScheduleSpec) { s.TimeZone = &local }, "spec.timeZone"},
		"policy":   {func(s *tasks.TaskScheduleSpec) { s.ConcurrencyPolicy = "Maybe" }, "spec.concurrencyPolicy"},
		"key":      {func(s *tasks.TaskScheduleSpec) { s.TaskTemplate.Spec.IdempotencyKey = "k" }, "spec.taskTemplate.spec.idempotencyKey"},
		"template": {func(s *tasks.TaskScheduleSpec) { s.TaskTemplate.Spec.Image = "" }, "spec.taskTemplate.spec.image"},
		"pod":      {func(s *tasks.TaskScheduleSpec) { s.TaskTemplate.Spec.PriorityClassName = "A_" }, "spec.taskTemplate.spec.priorityClassName"},
	} {
		s := &tasks.TaskSchedule{Spec: tasks.TaskScheduleSpec{Schedule: "* * * * *", TaskTemplate: tasks.TaskTemplateSpec{Spec: tasks.TaskSpec{Image: "i"}}}}
		tasks.DefaultSchedule(s)
		require.Empty(t, validateTaskSchedule(s))
		c.change(&s.Spec)
		errs := validateTaskSchedule(s)
		require.NotEmpty(t, errs, name)
		require.Equal(t, c.want, errs[0].Field, name)
	}
}
