package v1alpha1

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// TaskSchedule creates a task at each time of a cron schedule.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type TaskSchedule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what to run, and when.
	Spec TaskScheduleSpec `json:"spec"`
	// Status is what was run last.
	Status TaskScheduleStatus `json:"status,omitempty"`
}

// TaskScheduleList is a list of schedules.
//
// +kubebuilder:object:root=true
type TaskScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []TaskSchedule `json:"items"`
}

// TaskScheduleSpec says what to run, and when.
type TaskScheduleSpec struct {
	// Schedule is in cron's format, such as "0 3 * * *" or "@hourly".
	Schedule string `json:"schedule"`
	// TimeZone is the name of the time zone of the schedule, such as
	// "Europe/Paris". Unset: the server's.
	TimeZone *string `json:"timeZone,omitempty"`
	// StartingDeadlineSeconds is how late a task may be created. Unset: however
	// late.
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
	// ConcurrencyPolicy says what happens when the task before has not ended:
	// Allow (the default) runs both, Forbid skips the run, Replace deletes the
	// task before.
	ConcurrencyPolicy batchv1.ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`
	// Suspend creates no further tasks while it is true.
	Suspend *bool `json:"suspend,omitempty"`
	// CompletedTasksHistoryLimit is the number of completed tasks to keep,
	// FailedTasksHistoryLimit of failed ones, 0 to 1000. Defaults 3 and 1.
	CompletedTasksHistoryLimit *int32 `json:"completedTasksHistoryLimit,omitempty"`
	FailedTasksHistoryLimit    *int32 `json:"failedTasksHistoryLimit,omitempty"`
	// TaskTemplate is the task to create, without an idempotency key.
	TaskTemplate TaskTemplateSpec `json:"taskTemplate"`
}

// TaskTemplateSpec is the task of a schedule.
type TaskTemplateSpec struct {
	// Metadata has the labels and annotations of the tasks.
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec says what to run.
	Spec TaskSpec `json:"spec"`
}

// TaskScheduleStatus is what was run last.
type TaskScheduleStatus struct {
	// Active are tasks that have not ended.
	Active []corev1.ObjectReference `json:"active,omitempty"`
	// LastScheduleTime is the time of the last run, LastCompletedTime when a
	// task completed last.
	LastScheduleTime  *metav1.Time `json:"lastScheduleTime,omitempty"`
	LastCompletedTime *metav1.Time `json:"lastCompletedTime,omitempty"`
}

// The bounds of a schedule.
const (
	MaxScheduleName = 52 // bytes: the names of its tasks are longer
	maxHistory      = 1000
	maxSchedule     = 256 // bytes
)

// DefaultSchedule sets the defaults.
func DefaultSchedule(s *TaskSchedule) {
	if s.Spec.ConcurrencyPolicy == "" {
		s.Spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	for limit, otherwise := range map[**int32]int32{
		&s.Spec.CompletedTasksHistoryLimit: 3, &s.Spec.FailedTasksHistoryLimit: 1,
	} {
		if *limit == nil {
			n := otherwise
			*limit = &n
		}
	}
	DefaultSpec(&s.Spec.TaskTemplate.Spec)
}

// ValidateSchedule validates a schedule, except for the cron line and what becomes of the pod.
func ValidateSchedule(s *TaskSchedule) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if len(s.Name) > MaxScheduleName {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), "", MaxScheduleName))
	}
	switch n := len(s.Spec.Schedule); {
	case n == 0:
		errs = append(errs, field.Required(spec.Child("schedule"), "such as \"0 3 * * *\""))
	case n > maxSchedule:
		errs = append(errs, field.TooLong(spec.Child("schedule"), "", maxSchedule))
	}
	switch s.Spec.ConcurrencyPolicy {
	case batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent:
	default:
		errs = append(errs, field.NotSupported(spec.Child("concurrencyPolicy"), s.Spec.ConcurrencyPolicy,
			[]batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}))
	}
	if d := s.Spec.StartingDeadlineSeconds; d != nil && (*d < 0 || *d > MaxTimeout) {
		errs = append(errs,
			field.Invalid(spec.Child("startingDeadlineSeconds"), *d, fmt.Sprintf("must be from 0 to %d", MaxTimeout)))
	}
	for _, l := range []struct {
		name  string
		limit *int32
	}{{
		"completedTasksHistoryLimit", s.Spec.CompletedTasksHistoryLimit,
	}, {"failedTasksHistoryLimit", s.Spec.FailedTasksHistoryLimit}} {
		if l.limit != nil && (*l.limit < 0 || *l.limit > maxHistory) {
			errs = append(errs, field.Invalid(spec.Child(l.name), *l.limit, fmt.Sprintf("must be from 0 to %d", maxHistory)))
		}
	}
	at := spec.Child("taskTemplate", "spec")
	if s.Spec.TaskTemplate.Spec.IdempotencyKey != "" {
		errs = append(errs, field.Forbidden(at.Child("idempotencyKey"), "each run is another task"))
	}
	if s.Spec.TaskTemplate.Spec.Cancel {
		errs = append(errs, field.Forbidden(at.Child("cancel"), "its tasks would not run"))
	}
	return append(errs, ValidateSpec(&s.Spec.TaskTemplate.Spec, at)...)
}

// ScheduleColumns returns the columns of kubectl get taskschedules.
func ScheduleColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		{Name: "Schedule", Type: "string", Description: "When it runs"},
		{Name: "Timezone", Type: "string", Description: "The time zone of the schedule"},
		{Name: "Suspend", Type: "boolean", Description: "Whether it creates no tasks"},
		{Name: "Active", Type: "integer", Description: "Tasks that have not ended"},
		{Name: "Last Schedule", Type: "string", Description: "Time since the last run"},
		{Name: "Age", Type: "string", Description: "Time since its creation"},
		{Name: "Image", Type: "string", Priority: 1, Description: "The container image"},
	}
}

// ScheduleCells returns a schedule's values for ScheduleColumns.
func ScheduleCells(s *TaskSchedule, now time.Time) []any {
	last := "<none>"
	if t := s.Status.LastScheduleTime; !t.IsZero() {
		last = common.Age(t.Time, now)
	}
	zone := "<none>"
	if s.Spec.TimeZone != nil {
		zone = *s.Spec.TimeZone
	}
	return []any{s.Name, s.Spec.Schedule, zone, s.Spec.Suspend != nil && *s.Spec.Suspend, len(s.Status.Active),
		last, common.Age(s.CreationTimestamp.Time, now), s.Spec.TaskTemplate.Spec.Image}
}
