package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TaskSchedule is a template of tasks. It creates a task at each time of a cron schedule, or on request.
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
	// Schedule is the schedule in cron format, such as "0 3 * * *" or "@hourly". If empty, tasks are created only on
	// request, with `coracle run --from`.
	Schedule string `json:"schedule,omitempty"`
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
	// Parameters are values that each run can choose, at most 64. The containers get them as environment variables, and
	// $(NAME) in command and args stands for the value. With a schedule each needs a value.
	Parameters []TaskParameter `json:"parameters,omitempty"`
	// TaskTemplate is the template of the tasks. It must not have an idempotency key.
	TaskTemplate TaskTemplateSpec `json:"taskTemplate"`
}

// TaskParameter is a value that a run can choose.
type TaskParameter struct {
	// Name is the name of the environment variable.
	Name string `json:"name"`
	// Value is the default. If unset, each run must give a value.
	Value *string `json:"value,omitempty"`
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
	// NextScheduleTime is the time of the next run. It is not set while the schedule is suspended.
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
}

// Bounds of a TaskSchedule.
const (
	MaxScheduleName = 52 // bytes; leaves room for the suffix in the names of its tasks
	maxHistory      = 1000
	maxSchedule     = 256 // bytes
	maxParameters   = 64
)

// DefaultSchedule sets the defaults.
func DefaultSchedule(s *TaskSchedule) {
	s.Spec.ConcurrencyPolicy = cmp.Or(s.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	for limit, otherwise := range map[**int32]int32{
		&s.Spec.CompletedTasksHistoryLimit: 3, &s.Spec.FailedTasksHistoryLimit: 1,
	} {
		if *limit == nil {
			*limit = new(otherwise)
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
	if len(s.Spec.Schedule) > maxSchedule {
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
	errs = append(errs, validateParameters(s, spec.Child("parameters"))...)
	return append(errs, ValidateSpec(&s.Spec.TaskTemplate.Spec, at)...)
}

func validateParameters(s *TaskSchedule, path *field.Path) field.ErrorList {
	if n := len(s.Spec.Parameters); n > maxParameters {
		return field.ErrorList{field.TooMany(path, n, maxParameters)}
	}
	values := make([]corev1.EnvVar, len(s.Spec.Parameters))
	var errs field.ErrorList
	for i, p := range s.Spec.Parameters {
		values[i].Name = p.Name
		if p.Value == nil && s.Spec.Schedule != "" {
			errs = append(errs, field.Required(path.Index(i).Child("value"), "the runs of the schedule need one"))
		}
		if slices.ContainsFunc(s.Spec.TaskTemplate.Spec.Env, func(e corev1.EnvVar) bool { return e.Name == p.Name }) {
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), p.Name, "taskTemplate.spec.env sets it as well"))
		}
	}
	return append(errs, validateEnv(values, path)...)
}

// NewTask returns the task of a run with these arguments. The task has no name and no namespace.
func (s *TaskSchedule) NewTask(arguments map[string]string) (*Task, error) {
	m := s.Spec.TaskTemplate.DeepCopy()
	t := &Task{ObjectMeta: metav1.ObjectMeta{Labels: m.Labels, Annotations: m.Annotations}, Spec: m.Spec}
	var names []string
	var values []corev1.EnvVar
	used := 0
	for _, p := range s.Spec.Parameters {
		names = append(names, p.Name)
		value, given := arguments[p.Name]
		switch {
		case given:
			used++
		case p.Value == nil:
			return nil, fmt.Errorf("%s needs a value for its parameter %s", s.Name, p.Name)
		default:
			value = *p.Value
		}
		values = append(values, corev1.EnvVar{Name: p.Name, Value: value})
	}
	if used < len(arguments) {
		for name := range arguments {
			if !slices.Contains(names, name) {
				return nil, fmt.Errorf("%s has no parameter %s: it has %s", s.Name, name,
					cmp.Or(strings.Join(names, ", "), "none"))
			}
		}
	}
	t.Spec.Env = append(values, t.Spec.Env...)
	for i := range t.Spec.InitContainers {
		c := &t.Spec.InitContainers[i]
		c.Env = append(slices.Clone(values), c.Env...)
	}
	return t, nil
}
