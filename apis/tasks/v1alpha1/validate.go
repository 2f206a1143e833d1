package v1alpha1

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of a task.
const (
	MaxName        = 63 // bytes; the name is a label value of the pods
	MaxRetries     = 100
	MaxBackoff     = 3600       // seconds
	MaxTimeout     = 31_536_000 // seconds: a year
	MaxStopTimeout = 3600       // seconds
	MaxArray       = 10_000     // indexes
	MaxParallelism = 100
	MaxKey         = 256 // bytes
	MaxAttempts    = 20  // ended attempts in the status
	MaxFailed      = 20  // attempts of failed indexes in the status that ended before those
	MaxMessage     = 1024
	MaxNodes       = 100 // nodes in the status of an array
	maxPorts       = 32
	maxVolumes     = 32
	maxEnv         = 1000
	maxInit        = 16
	maxAfter       = 32
	MaxTargets     = 1000      // nodes of an array with everyNode
	maxWords       = 1000      // for command and args each
	maxText        = 256 << 10 // bytes of command, args and env together
)

// DefaultParallelism is the default of spec.array.parallelism.
const DefaultParallelism = 10

// Default sets the defaults. A new task becomes Pending, created at its creation timestamp. It is idempotent.
func Default(t *Task) {
	if t.Name == "" && t.GenerateName == "" && t.Spec.IdempotencyKey != "" {
		t.Name = NameForKey(t.Spec.IdempotencyKey)
	}
	DefaultSpec(&t.Spec)
	t.Status.Phase = cmp.Or(t.Status.Phase, TaskPending)
	if t.Status.CreatedAt == nil && !t.CreationTimestamp.IsZero() {
		t.Status.CreatedAt = t.CreationTimestamp.DeepCopy()
	}
}

// DefaultSpec sets the defaults of a spec.
func DefaultSpec(s *TaskSpec) {
	if s.BackoffSeconds == nil && s.Retries > 0 {
		s.BackoffSeconds = new(int32)
		*s.BackoffSeconds = 1
	}
	for i := range s.After {
		if s.After[i].Condition == "" {
			s.After[i].Condition = AfterSucceeded
		}
	}
	if a := s.Array; a != nil && a.Parallelism == nil {
		a.Parallelism = new(int32)
		*a.Parallelism = DefaultParallelism
	}
	for i := range s.Ports {
		if s.Ports[i].Protocol == "" {
			s.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
}

// Validate validates a new task. Pod fields, such as tolerations and volumes, are validated separately as a pod.
func Validate(t *Task) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if len(t.Name) > MaxName {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), "", MaxName))
	}
	if key := t.Spec.IdempotencyKey; key != "" {
		if len(key) > MaxKey {
			errs = append(errs, field.TooLong(spec.Child("idempotencyKey"), "", MaxKey))
		}
		if name := NameForKey(key); t.Name != name && t.Name != "" {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), t.Name,
				fmt.Sprintf("a task with this idempotency key is named %s: leave the name empty", name)))
		}
	}
	for i, a := range t.Spec.After {
		if a.Name == t.Name {
			errs = append(errs, field.Invalid(spec.Child("after").Index(i).Child("name"), a.Name, "is this task itself"))
		}
	}
	return append(errs, ValidateSpec(&t.Spec, spec)...)
}

// NeedsPods reports whether a spec has fields that let their author do what otherwise only pods can. They require the
// right to create pods.
func NeedsPods(s *TaskSpec) bool {
	return s.ServiceAccountName != "" || len(s.InitContainers) > 0 || slices.ContainsFunc(s.Volumes,
		func(v TaskVolume) bool { return v.HostPath != nil || v.PersistentVolumeClaim != nil })
}

// ValidateSpec validates a task's specification with its defaults.
func ValidateSpec(s *TaskSpec, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Image == "" {
		errs = append(errs, field.Required(spec.Child("image"), "name the image to run"))
	} else if strings.TrimSpace(s.Image) != s.Image {
		errs = append(errs, field.Invalid(spec.Child("image"), s.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, validateSizes(s, spec)...)
	if len(errs) > 0 { // otherwise each element of an oversized list could be an error
		return errs
	}
	errs = append(errs, validateEnv(s.Env, spec.Child("env"))...)
	if s.WorkingDir != "" && !path.IsAbs(s.WorkingDir) {
		errs = append(errs, field.Invalid(spec.Child("workingDir"), s.WorkingDir, "must be an absolute path"))
	}
	if r := s.Resources; r != nil {
		errs = append(errs, validateResources(r, spec.Child("resources"))...)
	}
	if n := s.NodeName; n != "" {
		for _, msg := range apivalidation.NameIsDNSSubdomain(n, false) {
			errs = append(errs, field.Invalid(spec.Child("nodeName"), n, msg))
		}
	}
	within := func(name string, value, low, high int64) {
		if value < low || value > high {
			errs = append(errs, field.Invalid(spec.Child(name), value, fmt.Sprintf("must be from %d to %d", low, high)))
		}
	}
	within("retries", int64(s.Retries), 0, MaxRetries)
	if b := s.BackoffSeconds; b != nil {
		within("backoffSeconds", int64(*b), 0, MaxBackoff)
	}
	if l := s.RunTimeoutSeconds; l != nil {
		within("runTimeoutSeconds", *l, 1, MaxTimeout)
	}
	if l := s.ScheduleTimeoutSeconds; l != nil {
		within("scheduleTimeoutSeconds", *l, 1, MaxTimeout)
	}
	if l := s.StartTimeoutSeconds; l != nil {
		within("startTimeoutSeconds", *l, 1, MaxTimeout)
	}
	if l := s.StopTimeoutSeconds; l != nil {
		within("stopTimeoutSeconds", *l, 1, MaxStopTimeout)
	}
	if l := s.TTLSecondsAfterFinished; l != nil {
		within("ttlSecondsAfterFinished", int64(*l), 0, 1<<31-1)
	}
	errs = append(errs, validateVolumes(s.Volumes, spec.Child("volumes"))...)
	for i, p := range s.Ports {
		at := spec.Child("ports").Index(i)
		if len(validation.IsValidPortNum(int(p.HostPort))) > 0 {
			errs = append(errs, field.Invalid(at.Child("hostPort"), p.HostPort, "must be from 1 to 65535"))
		}
		if len(validation.IsValidPortNum(int(p.ContainerPort))) > 0 {
			errs = append(errs, field.Invalid(at.Child("containerPort"), p.ContainerPort, "must be from 1 to 65535"))
		}
	}
	if s.OutputPath != "" && !path.IsAbs(s.OutputPath) {
		errs = append(errs, field.Invalid(spec.Child("outputPath"), s.OutputPath, "must be an absolute path"))
	}
	errs = append(errs, validateAfter(s.After, spec.Child("after"))...)
	if a := s.Array; a != nil {
		switch {
		case a.EveryNode && a.Size != 0:
			errs = append(errs, field.Forbidden(spec.Child("array", "size"), "the nodes are the indexes with everyNode"))
		case a.EveryNode && s.NodeName != "":
			errs = append(errs, field.Forbidden(spec.Child("nodeName"), "may not be set with array.everyNode"))
		case !a.EveryNode && (a.Size < 1 || a.Size > MaxArray):
			errs = append(errs,
				field.Invalid(spec.Child("array", "size"), a.Size, fmt.Sprintf("must be from 1 to %d", MaxArray)))
		}
		if p := a.Parallelism; p != nil && (*p < 1 || *p > MaxParallelism) {
			errs = append(errs,
				field.Invalid(spec.Child("array", "parallelism"), *p, fmt.Sprintf("must be from 1 to %d", MaxParallelism)))
		}
	}
	return errs
}

func validateVolumes(list []TaskVolume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range list {
		sources := 0
		for _, is := range []bool{
			v.ConfigMap != nil, v.Secret != nil, v.EmptyDir != nil, v.PersistentVolumeClaim != nil, v.HostPath != nil,
		} {
			if is {
				sources++
			}
		}
		if sources != 1 {
			errs = append(errs, field.Invalid(path.Index(i), "",
				"must have exactly one of configMap, secret, emptyDir, persistentVolumeClaim and hostPath"))
		}
		if v.Name == OutputVolume {
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), v.Name,
				"is the name of the volume at outputPath"))
		}
		if v.MountPath == "" {
			errs = append(errs, field.Required(path.Index(i).Child("mountPath"), "say where to mount it"))
		}
	}
	return errs
}

func validateAfter(after []TaskAfter, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, a := range after {
		for _, msg := range apivalidation.NameIsDNSSubdomain(a.Name, false) {
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), a.Name, msg))
		}
		if seen[a.Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), a.Name))
		}
		seen[a.Name] = true
		switch a.Condition {
		case AfterSucceeded, AfterFailed, AfterEnded:
		default:
			errs = append(errs, field.NotSupported(path.Index(i).Child("condition"), a.Condition,
				[]AfterCondition{AfterSucceeded, AfterFailed, AfterEnded}))
		}
	}
	return errs
}

func validateSizes(s *TaskSpec, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, l := range []struct {
		name     string
		len, max int
	}{
		{"command", len(s.Command), maxWords}, {"args", len(s.Args), maxWords}, {"env", len(s.Env), maxEnv},
		{"ports", len(s.Ports), maxPorts}, {"initContainers", len(s.InitContainers), maxInit},
		{"after", len(s.After), maxAfter},
		{"volumes", len(s.Volumes), maxVolumes}, {"tolerations", len(s.Tolerations), 64},
		{"nodeSelector", len(s.NodeSelector), 64},
	} {
		if l.len > l.max {
			errs = append(errs, field.TooMany(spec.Child(l.name), l.len, l.max))
		}
	}
	text := 0
	for _, w := range s.Command {
		text += len(w)
	}
	for _, w := range s.Args {
		text += len(w)
	}
	for _, e := range s.Env {
		text += len(e.Name) + len(e.Value)
	}
	if text > maxText {
		errs = append(errs,
			field.Invalid(spec, fmt.Sprintf("%d bytes", text),
				fmt.Sprintf("command, args and env together must have at most %d bytes: use a ConfigMap", maxText)))
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
			for _, is := range []bool{
				from.FieldRef != nil, from.ResourceFieldRef != nil, from.ConfigMapKeyRef != nil, from.SecretKeyRef != nil,
				from.FileKeyRef != nil,
			} {
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

// ValidateUpdate validates a change of the spec.
func ValidateUpdate(t, old *Task) field.ErrorList {
	errs := Validate(t)
	path := field.NewPath("spec")
	was := old.Spec.DeepCopy()
	was.Suspend, was.Cancel, was.TTLSecondsAfterFinished = t.Spec.Suspend, t.Spec.Cancel, t.Spec.TTLSecondsAfterFinished
	if !old.Status.Phase.Ended() {
		was.Retries, was.BackoffSeconds = t.Spec.Retries, t.Spec.BackoffSeconds
		was.RunTimeoutSeconds, was.ScheduleTimeoutSeconds, was.StartTimeoutSeconds = t.Spec.RunTimeoutSeconds,
			t.Spec.ScheduleTimeoutSeconds, t.Spec.StartTimeoutSeconds
		if was.Array != nil && t.Spec.Array != nil {
			was.Array.Parallelism = t.Spec.Array.Parallelism
		}
	}
	if old.Spec.Cancel && !t.Spec.Cancel {
		errs = append(errs,
			field.Forbidden(path.Child("cancel"), "a cancelled task cannot be resumed; create another task instead"))
	}
	if !equality.Semantic.DeepEqual(*was, t.Spec) {
		errs = append(errs,
			field.Forbidden(path,
				"only suspend, cancel, ttlSecondsAfterFinished and, before the task has ended, retries, backoffSeconds, "+
					"runTimeoutSeconds, scheduleTimeoutSeconds, startTimeoutSeconds and array.parallelism may change; create another "+
					"task instead"))
	}
	return errs
}

var order = map[TaskPhase]int{"": 0, TaskPending: 1, TaskScheduled: 2, TaskRunning: 3, TaskCompleted: 4, TaskFailed: 4}

// ValidateStatusUpdate validates a change of the status. The phase moves forward only, unless another attempt has
// ended. Ended attempts do not change. The status of a finished task is immutable.
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
	var errs field.ErrorList
	if to < order[old.Status.Phase] && t.Status.EndedAttempts <= old.Status.EndedAttempts {
		errs = append(errs, field.Invalid(path.Child("phase"), t.Status.Phase,
			"a phase never moves back from "+string(old.Status.Phase)+" during an attempt"))
	}
	if t.Status.EndedAttempts < old.Status.EndedAttempts {
		errs = append(errs, field.Invalid(path.Child("endedAttempts"), t.Status.EndedAttempts, "must not decrease"))
	}
	if n := len(t.Status.Attempts); n > MaxFailed+MaxAttempts+MaxParallelism {
		errs = append(errs, field.TooMany(path.Child("attempts"), n, MaxFailed+MaxAttempts+MaxParallelism))
	}
	if a := t.Status.Array; a != nil && len(a.Nodes) > MaxNodes {
		errs = append(errs, field.TooMany(path.Child("array", "nodes"), len(a.Nodes), MaxNodes))
	}
	if a := t.Status.Array; a != nil && len(a.Targets) > MaxTargets {
		errs = append(errs, field.TooMany(path.Child("array", "targets"), len(a.Targets), MaxTargets))
	}
	return errs
}
