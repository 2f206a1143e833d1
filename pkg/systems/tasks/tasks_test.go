package tasks

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

func TestTheAttemptWhoseLogIsAskedFor(t *testing.T) {
	one, two := int32(1), int32(2)
	task := &tasks.Task{
		Status: tasks.TaskStatus{
			Phase: tasks.TaskPending, Error: "attempt 2 failed: exit code 1", Attempts: []tasks.TaskAttempt{
				{Number: 1, Node: "n", PodUID: "a", Index: &one}, {Number: 2, Node: "n", PodUID: "b", Index: &one},
				{Number: 1, Node: "n", PodUID: "c", Index: &two}, {Number: 3, Index: &one},
			},
		},
	}
	for query, want := range map[string]string{"": "c", "index=1": "b", "index=1&attempt=1": "a", "attempt=2": "b"} {
		q, err := url.ParseQuery(query)
		require.NoError(t, err)
		a, err := loggedAttempt(task, q)
		require.NoError(t, err)
		require.Equal(t, want, a.uid, query)
		require.Equal(t, []string{"n"}, a.nodes)
	}
	for query, want := range map[string]string{
		"attempt=3": "no such attempt",
		"index=9":   "no such attempt",
		"attempt=x": "not a number",
		"attempt=0": "not a number of 1",
		"index=-1":  "not a number of 0",
	} {
		q, err := url.ParseQuery(query)
		require.NoError(t, err)
		_, err = loggedAttempt(task, q)
		require.ErrorContains(t, err, want, query)
	}
	failed := &task.Status.Attempts[2]
	failed.Phase, failed.Message = tasks.TaskFailed, "the image cannot be pulled"
	for started, want := range map[*metav1.Time]string{
		nil: "attempt 1 of task  has no output, because its container did not start: the image cannot be pulled",
		{}:  "",
	} {
		failed.StartedAt = started
		a, err := loggedAttempt(task, nil)
		require.NoError(t, err)
		require.Equal(t, want != "", a.notStarted != nil)
		if want != "" {
			require.EqualError(t, a.notStarted, want)
		}
	}
	task.Status.Attempts = nil
	_, err := loggedAttempt(task, nil)
	require.ErrorContains(t, err, "it is Pending: attempt 2 failed")
}

// TestTheLogOfAnAttemptThatIsNotListed checks that the nodes of other attempts are asked for the log of an attempt
// that the status no longer lists, by its pod's name.
func TestTheLogOfAnAttemptThatIsNotListed(t *testing.T) {
	at := int32(99)
	task := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Name: "t", UID: "12345678-9"}, Spec: tasks.TaskSpec{Array: &tasks.TaskArray{Size: 100}},
		Status: tasks.TaskStatus{
			EndedAttempts: 100,
			Array:         &tasks.TaskArrayStatus{Nodes: []string{"a", "b"}},
			Attempts:      []tasks.TaskAttempt{{Number: 1, Index: &at, Node: "c", PodUID: "u"}},
		},
	}
	for query, want := range map[string]*loggedFrom{
		"index=99":           {nodes: []string{"c"}, uid: "u"},
		"index=7":            {nodes: []string{"a", "b", "c"}, pod: "t-12345678-7-*", uid: tasks.AnyPod, ended: true},
		"index=11&attempt=1": {nodes: []string{"a", "b", "c"}, pod: "t-12345678-11-1", uid: tasks.AnyPod, ended: true},
	} {
		q, err := url.ParseQuery(query)
		require.NoError(t, err)
		from, err := loggedAttempt(task, q)
		require.NoError(t, err, query)
		require.Equal(t, want, from, query)
	}
	_, err := loggedAttempt(task, url.Values{"index": {"100"}})
	require.ErrorContains(t, err, "no such attempt")

	task.Spec.Array, task.Status.Array, task.Status.Attempts = nil, nil, []tasks.TaskAttempt{
		{Number: 30, Node: "n", PodUID: "u"},
	}
	from, err := loggedAttempt(task, url.Values{"attempt": {"2"}})
	require.NoError(t, err)
	require.Equal(t, &loggedFrom{nodes: []string{"n"}, pod: "t-12345678-2", uid: tasks.AnyPod, ended: true}, from)
}

func TestSchedulesNameTheField(t *testing.T) {
	zone, local := "Moon/Base", "Local"
	for name, c := range map[string]struct {
		change func(*tasks.TaskScheduleSpec)
		want   string
	}{
		"line":   {func(s *tasks.TaskScheduleSpec) { s.Schedule = "now and then" }, "spec.schedule"},
		"panics": {func(s *tasks.TaskScheduleSpec) { s.Schedule = "TZ=0" }, "spec.schedule"},
		"zone":   {func(s *tasks.TaskScheduleSpec) { s.TimeZone = &zone }, "spec.timeZone"},
		"local":  {func(s *tasks.TaskScheduleSpec) { s.TimeZone = &local }, "spec.timeZone"},
		"policy": {func(s *tasks.TaskScheduleSpec) { s.ConcurrencyPolicy = "Maybe" }, "spec.concurrencyPolicy"},
		"key": {
			func(s *tasks.TaskScheduleSpec) { s.TaskTemplate.Spec.IdempotencyKey = "k" },
			"spec.taskTemplate.spec.idempotencyKey",
		},
		"template": {func(s *tasks.TaskScheduleSpec) { s.TaskTemplate.Spec.Image = "" }, "spec.taskTemplate.spec.image"},
		"pod": {
			func(s *tasks.TaskScheduleSpec) { s.TaskTemplate.Spec.PriorityClassName = "A_" },
			"spec.taskTemplate.spec.priorityClassName",
		},
	} {
		s := &tasks.TaskSchedule{
			Spec: tasks.TaskScheduleSpec{
				Schedule: "* * * * *", TaskTemplate: tasks.TaskTemplateSpec{Spec: tasks.TaskSpec{Image: "i"}},
			},
		}
		tasks.DefaultSchedule(s)
		require.Empty(t, validateSchedule(s))
		c.change(&s.Spec)
		errs := validateSchedule(s)
		require.NotEmpty(t, errs, name)
		require.Equal(t, c.want, errs[0].Field, name)
	}
}

// TestCancelledInATable checks that kubectl's table has the same word for a cancelled task as coracle ps.
func TestCancelledInATable(t *testing.T) {
	task := &tasks.Task{Status: tasks.TaskStatus{Phase: tasks.TaskFailed}}
	status := taskColumns()[0]
	require.Equal(t, "Status", status.Name)
	require.Equal(t, "Failed", status.Cell(task))
	task.Status.Reason = tasks.ReasonCancelled
	require.Equal(t, "Cancelled", status.Cell(task))
}
