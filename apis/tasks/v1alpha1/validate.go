package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Default sets the defaults: a new task is Pending since its creation. It is idempotent.
func Default(t *Task) {
	if t.Status.Phase == "" {
		t.Status.Phase = TaskPending
	}
	if t.Status.CreatedAt == nil && !t.CreationTimestamp.IsZero() {
		t.Status.CreatedAt = t.CreationTimestamp.DeepCopy()
	}
}

// Validate validates a new task, except for its metadata.
func Validate(t *Task) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if t.Spec.Image == "" {
		errs = append(errs, field.Required(spec.Child("image"), "name the image to run"))
	} else if strings.TrimSpace(t.Spec.Image) != t.Spec.Image {
		errs = append(errs, field.Invalid(spec.Child("image"), t.Spec.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, validateEnv(t.Spec.Env, spec.Child("env"))...)
	if r := t.Spec.Resources; r != nil {
		errs = append(errs, validateResources(r, spec.Child("resources"))...)
	}
	if n := t.Spec.NodeName; n != "" {
		for _, msg := range apivalidation.NameIsDNSSubdomain(n, false) {
			errs = append(errs, field.Invalid(spec.Child("nodeName"), n, msg))
		}
	}
	if s := t.Spec.TimeoutSeconds; s != nil && *s < 1 {
		errs = append(errs, field.Invalid(spec.Child("timeoutSeconds"), *s, "must be at least 1"))
	}
	return errs
}

func validateEnv(env []corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, e := range env {
		at := path.Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			for _, msg := range validation.IsRelaxedEnvVarName(e.Name) {
				errs = append(errs, field.Invalid(at.Child("name"), e.Name, msg))
			}
		}
		if seen[e.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), e.Name))
		}
		seen[e.Name] = true
		if from := e.ValueFrom; from != nil {
			set := 0
			for _, is := range []bool{from.FieldRef != nil, from.ResourceFieldRef != nil, from.ConfigMapKeyRef != nil, from.SecretKeyRef != nil, from.FileKeyRef != nil} {
				if is {
					set++
				}
			}
			if set != 1 {
				errs = append(errs, field.Invalid(at.Child("valueFrom"), "", "must have exactly one source"))
			}
			if e.Value != "" {
				errs = append(errs, field.Invalid(at.Child("valueFrom"), "", "may not be set when value is set"))
			}
		}
	}
	return errs
}

func validateResources(r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for at, list := range map[string]corev1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for name, q := range list {
			if q.Sign() < 0 {
				errs = append(errs, field.Invalid(path.Child(at).Key(string(name)), q.String(), "must not be negative"))
			}
		}
	}
	for name, q := range r.Requests {
		if limit, ok := r.Limits[name]; ok && q.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), q.String(),
				fmt.Sprintf("must be at most the %s limit of %s", name, limit.String())))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

// ValidateUpdate validates a change of the spec: only timeoutSeconds may change, and only before the task has ended.
func ValidateUpdate(t, old *Task) field.ErrorList {
	errs := Validate(t)
	was := old.Spec.DeepCopy()
	if !old.Status.Phase.Ended() {
		was.TimeoutSeconds = t.Spec.TimeoutSeconds
	}
	if !equality.Semantic.DeepEqual(*was, t.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"only timeoutSeconds may change, and only before the task has ended; create another task instead"))
	}
	return errs
}

var order = map[TaskPhase]int{"": 0, TaskPending: 1, TaskScheduled: 2, TaskRunning: 3, TaskCompleted: 4, TaskFailed: 4}

// ValidateStatusUpdate validates a change of the status: the phase only moves forward, and the status of a finished
// task is immutable.
func ValidateStatusUpdate(t, old *Task) field.ErrorList {
	path := field.NewPath("status")
	to, known := order[t.Status.Phase]
	if !known {
		return field.ErrorList{field.NotSupported(path.Child("phase"), t.Status.Phase,
			[]TaskPhase{TaskPending, TaskScheduled, TaskRunning, TaskCompleted, TaskFailed})}
	}
	if old.Status.Phase.Ended() {
		if !equality.Semantic.DeepEqual(t.Status, old.Status) {
			return field.ErrorList{field.Forbidden(path, "the task has ended")}
		}
		return nil
	}
	if to < order[old.Status.Phase] {
		return field.ErrorList{field.Invalid(path.Child("phase"), t.Status.Phase, "a phase never moves back from "+string(old.Status.Phase))}
	}
	return nil
}
