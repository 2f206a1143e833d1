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

	// Spec is the desired state.
	Spec TaskScheduleSpec `json:"spec"`
	// Status is the observed state.
	Status TaskScheduleStatus `json:"status,omitempty"`
}

// TaskScheduleList is a list of TaskSchedules.
//
// +kubebuilder:object:root=true
type TaskScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []TaskSchedule `json:"items"`
}

// TaskScheduleSpec is the desired state of a TaskSchedule.
type TaskScheduleSpec struct {
	// Schedule is the schedule in cron format, such as "0 3 * * *" or "@hourly".
	Schedule string `json:"schedule"`
	// TimeZone is the time zone of the schedule, such as "Europe/Paris". If unset, the server's time zone is used.
	TimeZone *string `json:"timeZone,omitempty"`
	// StartingDeadlineSeconds is how late a task may be created after its scheduled time. If unset, the time
	// is not limited.
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
	// ConcurrencyPolicy specifies what happens if the previous task is still running: Allow (the default) runs
	// both, Forbid skips the new run, Replace deletes the previous task.
	ConcurrencyPolicy batchv1.ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`
	// Suspend stops the creation of further tasks while it is true.
	Suspend *bool `json:"suspend,omitempty"`
	// CompletedTasksHistoryLimit and FailedTasksHistoryLimit are the numbers of completed and failed tasks to keep,
	// 0 to 1000. They default to 3 and 1.
	CompletedTasksHistoryLimit *int32 `json:"completedTasksHistoryLimit,omitempty"`
	FailedTasksHistoryLimit    *int32 `json:"failedTasksHistoryLimit,omitempty"`
	// TaskTemplate is the template of the tasks. It must not have an idempotency key.
	TaskTemplate TaskTemplateSpec `json:"taskTemplate"`
}

// TaskTemplateSpec is the template of a schedule's tasks.
type TaskTemplateSpec struct {
	// Metadata has the labels and annotations of the tasks.
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec is the spec of the tasks.
	Spec TaskSpec `json:"spec"`
}

// TaskScheduleStatus is the observed state of a TaskSchedule.
type TaskScheduleStatus struct {
	// Active lists the tasks that have not finished.
	Active []corev1.ObjectReference `json:"active,omitempty"`
	// LastScheduleTime is the time of the last run. LastCompletedTime is when a task last completed.
	LastScheduleTime  *metav1.Time `json:"lastScheduleTime,omitempty"`
	LastCompletedTime *metav1.Time `json:"lastCompletedTime,omitempty"`
}

// Bounds of a TaskSchedule.
const (
	MaxScheduleName = 52 // bytes; leaves room for the suffix in the names of its tasks
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

// ValidateSchedule validates a TaskSchedule, except for the cron expression and the fields that the pod's
// validation covers.
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
