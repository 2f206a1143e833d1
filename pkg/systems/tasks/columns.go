package tasks

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

func taskColumns() []own.Column[*tasks.Task] {
	type task = *tasks.Task
	return []own.Column[task]{
		{Name: "Status", About: "The phase, or Cancelled if it was cancelled", Cell: func(t task) any {
			if t.DeletionTimestamp != nil && !t.Status.Phase.Ended() {
				return "Terminating"
			}
			return tasks.Outcome(t.Status.Phase, t.Status.Reason)
		}},
		{Name: "Node", About: "The node it was scheduled to", Cell: func(t task) any { return t.Status.Node }},
		{Name: "Exit", About: "The container's exit code", Cell: func(t task) any {
			if t.Status.ExitCode == nil {
				return ""
			}
			return *t.Status.ExitCode
		}},
		{
			Name: "Attempts", About: "The attempts so far, in an array of all indexes", Type: "integer",
			Cell: func(t task) any { return tasks.Attempts(t) },
		},
		{
			Name: "Indexes", About: "The completed and all indexes of an array",
			Cell: func(t task) any { return tasks.Indexes(t) },
		},
		own.AgeColumn[task](),
		{Name: "Image", About: "The container image", Wide: true, Cell: func(t task) any { return t.Spec.Image }},
		{Name: "Reason", About: "Why it failed, in one word", Wide: true, Cell: func(t task) any { return t.Status.Reason }},
		{Name: "Error", About: "Why it failed", Wide: true, Cell: func(t task) any { return t.Status.Error }},
	}
}

func scheduleColumns() []own.Column[*tasks.TaskSchedule] {
	type schedule = *tasks.TaskSchedule
	return []own.Column[schedule]{
		{Name: "Schedule", About: "When it runs", Cell: func(s schedule) any {
			return cmp.Or(s.Spec.Schedule, "<none>")
		}},
		{Name: "Timezone", About: "The time zone of the schedule", Cell: func(s schedule) any {
			if s.Spec.TimeZone == nil {
				return "<none>"
			}
			return *s.Spec.TimeZone
		}},
		{Name: "Suspend", About: "Whether it creates no tasks", Type: "boolean", Cell: func(s schedule) any {
			return s.Spec.Suspend != nil && *s.Spec.Suspend
		}},
		{Name: "Active", About: "Tasks that have not ended", Type: "integer", Cell: func(s schedule) any {
			return len(s.Status.Active)
		}},
		{Name: "Last Schedule", About: "Time since the last run", Cell: func(s schedule) any {
			return own.Ago(s.Status.LastScheduleTime, "<none>")
		}},
		{Name: "Next Schedule", About: "Time until the next run", Cell: func(s schedule) any {
			if t := s.Status.NextScheduleTime; !t.IsZero() {
				return duration.HumanDuration(time.Until(t.Time))
			}
			return "<none>"
		}},
		own.AgeColumn[schedule](),
		{Name: "Image", About: "The container image", Wide: true, Cell: func(s schedule) any {
			return s.Spec.TaskTemplate.Spec.Image
		}},
	}
}
