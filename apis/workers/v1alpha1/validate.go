package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds and defaults of a Worker.
const (
	// ContainerName is the container of a worker's pods that gets the messages.
	ContainerName = "worker"

	maxReplicas    = 1000
	maxConcurrency = 1000
	maxQueue       = 100_000
	maxTimeout     = 3600
	maxQueueWait   = 86400
	maxAttempts    = 100
	maxParameters  = 64
	maxParameter   = 16 << 10 // bytes of all parameters together
	maxPath        = 256
	maxTriggers    = 16
	maxTriggerData = 64 << 10 // bytes of all data together
	maxTriggerLate = 86400
	maxBatchSize   = 1000
	maxBatchWindow = 300

	defaultPort      = 8080
	defaultQueue     = 1000
	defaultTimeout   = 60
	defaultQueueWait = 3600
	defaultAttempts  = 5
	defaultIdle      = 60
	defaultLate      = 3600
	defaultBatch     = 10
)

// Default sets the defaults. It is idempotent.
func Default(w *Worker) {
	s := &w.Spec
	set := func(v *int32, d int32) {
		if *v == 0 {
			*v = d
		}
	}
	set(&s.Concurrency, 1)
	set(&s.QueueLimit, defaultQueue)
	set(&s.TimeoutSeconds, defaultTimeout)
	set(&s.QueueSeconds, defaultQueueWait)
	each := int32(1)
	if b := s.Batch; b != nil {
		set(&b.Size, defaultBatch)
		each = b.Size
	}
	if s.Mode == "" {
		s.Mode = ModePoll
	}
	if s.Mode == ModePush && s.Push == nil {
		s.Push = &WorkerPush{}
	}
	if p := s.Push; p != nil {
		set(&p.Port, defaultPort)
		if p.Path == "" {
			p.Path = "/"
		}
	}
	if s.Replicas == nil && s.Scale == nil {
		one := int32(1)
		s.Replicas = &one
	}
	if r := s.Scale; r != nil {
		set(&r.TargetDepth, int32(min(2*int64(s.Concurrency)*int64(each), maxQueue)))
		set(&r.IdleSeconds, defaultIdle)
	}
	if s.Delivery.Promise == "" {
		s.Delivery.Promise = AtMostOnce
	}
	if s.Delivery.Promise == AtLeastOnce {
		set(&s.Delivery.MaxAttempts, defaultAttempts)
	}
	for i := range s.Triggers {
		if t := &s.Triggers[i]; t.StartingDeadlineSeconds == nil && t.Schedule != "" {
			late := int64(defaultLate)
			t.StartingDeadlineSeconds = &late
		}
	}
}

// Validate validates a worker, except for most of its metadata.
func Validate(w *Worker) field.ErrorList {
	path, s := field.NewPath("spec"), &w.Spec
	var errs field.ErrorList
	// The worker's service has the same name.
	if w.Name != "" {
		for _, msg := range apivalidation.NameIsDNS1035Label(w.Name, false) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), w.Name, msg))
		}
	}
	errs = append(errs, validateProgram(s, path)...)
	errs = append(errs, validateTemplate(s.Template, path.Child("template", "spec"))...)
	errs = append(errs, validateReplicas(s, path)...)
	errs = append(errs, validateQueue(s, path)...)
	errs = append(errs, validateBatch(s, path)...)
	errs = append(errs, validateTriggers(s.Triggers, path.Child("triggers"))...)
	errs = append(errs, validateNATS(s, path)...)
	return append(errs, validateDelivery(w, path.Child("delivery"))...)
}

// validateTemplate refuses what a worker's own fields decide. The pod is validated separately.
func validateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	if t == nil {
		return nil
	}
	var errs field.ErrorList
	forbid := func(set bool, at *field.Path, why string) {
		if set {
			errs = append(errs, field.Forbidden(at, why))
		}
	}
	if p := t.Spec.RestartPolicy; p != "" && p != corev1.RestartPolicyAlways {
		only := []corev1.RestartPolicy{corev1.RestartPolicyAlways}
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), p, only))
	}
	forbid(t.Spec.HostNetwork, path.Child("hostNetwork"), "the messages' API is on the pod's own loopback")
	forbid(t.Spec.ServiceAccountName != "", path.Child("serviceAccountName"), "set spec.serviceAccountName")
	for i := range t.Spec.Containers {
		c, at := &t.Spec.Containers[i], path.Child("containers").Index(i)
		if c.Name != ContainerName {
			continue
		}
		forbid(c.Image != "", at.Child("image"), "set spec.image")
		forbid(len(c.Command) > 0, at.Child("command"), "set spec.command")
		forbid(len(c.Args) > 0, at.Child("args"), "set spec.args")
		forbid(len(c.Env) > 0, at.Child("env"), "set spec.env")
		forbid(c.Resources.Size() > 0, at.Child("resources"), "set spec.resources")
	}
	return errs
}

func between(v, least, most int32, path *field.Path) field.ErrorList {
	if v < least || v > most {
		return field.ErrorList{field.Invalid(path, v, fmt.Sprintf("must be between %d and %d", least, most))}
	}
	return nil
}

func validateProgram(s *WorkerSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case s.Image == "" && s.Function == "":
		errs = append(errs, field.Required(path.Child("image"), "name the image to run, or a built-in function"))
	case s.Image != "" && s.Function != "":
		errs = append(errs, field.Invalid(path.Child("function"), s.Function, "may not be set when image is set"))
	case strings.TrimSpace(s.Image) != s.Image:
		errs = append(errs, field.Invalid(path.Child("image"), s.Image, "must not have leading or trailing whitespace"))
	}
	switch s.Function {
	case "", FunctionEcho, FunctionCalculator, FunctionForward, FunctionAggregate:
	default:
		errs = append(errs,
			field.NotSupported(path.Child("function"), s.Function, []Function{
				FunctionEcho, FunctionCalculator, FunctionForward, FunctionAggregate,
			}))
	}
	if s.Function != "" {
		for name, list := range map[string][]string{"command": s.Command, "args": s.Args} {
			if len(list) > 0 {
				errs = append(errs, field.Forbidden(path.Child(name), "may not be set with a built-in function"))
			}
		}
		if s.Mode == ModePush {
			errs = append(errs, field.Invalid(path.Child("mode"), s.Mode, "built-in functions have mode Poll"))
		}
	}
	reserved := []string{ParametersEnv, RuntimeEnv, MessagesEnv, FunctionEnv, ConcurrencyEnv}
	seen := map[string]bool{}
	for i, e := range s.Env {
		at := path.Child("env").Index(i).Child("name")
		for _, msg := range validation.IsRelaxedEnvVarName(e.Name) {
			errs = append(errs, field.Invalid(at, e.Name, msg))
		}
		if slices.Contains(reserved, e.Name) {
			errs = append(errs, field.Forbidden(at, e.Name+" is set by the worker: use parameters"))
		} else if seen[e.Name] {
			errs = append(errs, field.Duplicate(at, e.Name))
		}
		seen[e.Name] = true
	}
	if len(s.Parameters) > maxParameters {
		errs = append(errs, field.TooMany(path.Child("parameters"), len(s.Parameters), maxParameters))
	}
	size := 0
	for k, v := range s.Parameters {
		size += len(k) + len(v)
		if k == "" {
			errs = append(errs, field.Required(path.Child("parameters"), "a name is empty"))
		}
	}
	if size > maxParameter {
		errs = append(errs, field.TooLong(path.Child("parameters"), "", maxParameter))
	}
	if n := s.ServiceAccountName; n != "" {
		for _, msg := range apivalidation.ValidateServiceAccountName(n, false) {
			errs = append(errs, field.Invalid(path.Child("serviceAccountName"), n, msg))
		}
	}
	errs = append(errs, unversioned.ValidateLabels(s.PodLabels, path.Child("podLabels"))...)
	if _, ok := s.PodLabels[LabelWorker]; ok {
		errs = append(errs, field.Forbidden(path.Child("podLabels").Key(LabelWorker), "is set by the worker"))
	}
	if r := s.Resources; r != nil {
		for name, list := range map[string]corev1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
			for resource, q := range list {
				if q.Sign() < 0 {
					errs = append(errs,
						field.Invalid(path.Child("resources", name).Key(string(resource)), q.String(), "must not be negative"))
				}
			}
		}
	}
	return errs
}

func validateReplicas(s *WorkerSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Replicas != nil {
		errs = append(errs, between(*s.Replicas, 0, maxReplicas, path.Child("replicas"))...)
	}
	if r := s.Scale; r != nil {
		at := path.Child("scale")
		if s.Replicas != nil {
			errs = append(errs, field.Invalid(at, "", "may not be set when replicas is set"))
		}
		errs = append(errs, between(r.Max, 1, maxReplicas, at.Child("max"))...)
		errs = append(errs, between(r.Min, 0, max(r.Max, 0), at.Child("min"))...)
		errs = append(errs, between(r.TargetDepth, 1, maxQueue, at.Child("targetDepth"))...)
		errs = append(errs, between(r.IdleSeconds, 1, maxQueueWait, at.Child("idleSeconds"))...)
	}
	return errs
}

func validateQueue(s *WorkerSpec, path *field.Path) field.ErrorList {
	errs := between(s.Concurrency, 1, maxConcurrency, path.Child("concurrency"))
	errs = append(errs, between(s.QueueLimit, 1, maxQueue, path.Child("queueLimit"))...)
	errs = append(errs, between(s.TimeoutSeconds, 1, maxTimeout, path.Child("timeoutSeconds"))...)
	errs = append(errs, between(s.QueueSeconds, 1, maxQueueWait, path.Child("queueSeconds"))...)
	if s.Mode != ModePoll && s.Mode != ModePush {
		errs = append(errs, field.NotSupported(path.Child("mode"), s.Mode, []Mode{ModePoll, ModePush}))
	}
	if p := s.Push; p != nil {
		at := path.Child("push")
		if s.Mode != ModePush {
			errs = append(errs, field.Invalid(at, "", "may only be set with mode Push"))
		}
		errs = append(errs, between(p.Port, 1, 65535, at.Child("port"))...)
		if msg := checkPath(p.Path); msg != "" {
			errs = append(errs, field.Invalid(at.Child("path"), p.Path, msg))
		}
	}
	return errs
}

func validateBatch(s *WorkerSpec, path *field.Path) field.ErrorList {
	b, at := s.Batch, path.Child("batch")
	if b == nil {
		return nil
	}
	errs := between(b.Size, 1, max(1, min(maxBatchSize, s.QueueLimit)), at.Child("size"))
	errs = append(errs, between(b.WindowSeconds, 0, max(0, min(maxBatchWindow, s.QueueSeconds-1)),
		at.Child("windowSeconds"))...)
	if s.Function != "" {
		errs = append(errs, field.Forbidden(at, "may not be set with a built-in function"))
	}
	for name, to := range map[string]string{"replies": s.Delivery.Replies, "repliesSubject": s.Delivery.RepliesSubject} {
		if to != "" {
			errs = append(errs, field.Forbidden(path.Child("delivery", name),
				"may not be set with batch: the answer to a batch only names the messages that failed"))
		}
	}
	return errs
}

// validateTriggers checks bounds. Schedules are validated separately.
func validateTriggers(list []WorkerTrigger, path *field.Path) field.ErrorList {
	if len(list) > maxTriggers {
		return field.ErrorList{field.TooMany(path, len(list), maxTriggers)}
	}
	var errs field.ErrorList
	size := 0
	for i := range list {
		t, at := &list[i], path.Index(i)
		size += len(t.Data)
		errs = append(errs, validateTrigger(t, at)...)
	}
	if size > maxTriggerData {
		errs = append(errs, field.TooLong(path, "", maxTriggerData))
	}
	return errs
}

func validateTrigger(t *WorkerTrigger, path *field.Path) (errs field.ErrorList) {
	scheduled := t.Schedule != "" || t.TimeZone != "" || t.Data != "" || t.StartingDeadlineSeconds != nil
	switch {
	case t.Objects == nil && t.NATS == nil && t.Schedule == "":
		errs = append(errs, field.Required(path.Child("schedule"),
			"five fields as in a CronJob, such as */5 * * * *, or set objects or nats"))
	case t.Objects != nil && t.NATS != nil, scheduled && (t.Objects != nil || t.NATS != nil):
		errs = append(errs, field.Forbidden(path, "has a schedule, objects or nats, not several of them"))
	}
	if t.Objects != nil {
		errs = append(errs, validateObjects(t.Objects, path.Child("objects"))...)
	}
	if d := t.StartingDeadlineSeconds; d != nil && (*d < 1 || *d > maxTriggerLate) {
		errs = append(errs, field.Invalid(path.Child("startingDeadlineSeconds"), *d,
			fmt.Sprintf("must be between 1 and %d", maxTriggerLate)))
	}
	return errs
}

// checkPath returns an error text for an invalid path of pushed messages, or "".
func checkPath(path string) string {
	if !strings.HasPrefix(path, "/") || len(path) > maxPath ||
		strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' || r == '?' || r == '#' }) {
		return fmt.Sprintf("must begin with a slash and have at most %d printable ASCII characters, without query", maxPath)
	}
	return ""
}

func validateDelivery(w *Worker, path *field.Path) field.ErrorList {
	d := &w.Spec.Delivery
	var errs field.ErrorList
	for _, f := range [][2]string{{"deadLetter", d.DeadLetter}, {"replies", d.Replies}} {
		name, other := f[0], f[1]
		if other == "" {
			continue
		}
		if other == w.Name {
			errs = append(errs, field.Invalid(path.Child(name), other, "must be another worker"))
		}
		for _, msg := range apivalidation.NameIsDNS1035Label(other, false) {
			errs = append(errs, field.Invalid(path.Child(name), other, msg))
		}
	}
	switch d.Promise {
	case AtMostOnce:
		if d.MaxAttempts > 1 {
			errs = append(errs, field.Invalid(path.Child("maxAttempts"), d.MaxAttempts, "may only be set with AtLeastOnce"))
		}
		if d.DeadLetter != "" {
			errs = append(errs, field.Invalid(path.Child("deadLetter"), d.DeadLetter, "may only be set with AtLeastOnce"))
		}
		if d.Store != "" {
			errs = append(errs, field.Invalid(path.Child("store"), d.Store, "may only be set with AtLeastOnce"))
		}
	case AtLeastOnce:
		errs = append(errs, between(d.MaxAttempts, 1, maxAttempts, path.Child("maxAttempts"))...)
		if d.Store != "" && d.Store != StoreLocal && d.Store != StoreNATS {
			errs = append(errs, field.NotSupported(path.Child("store"), d.Store, []Store{StoreLocal, StoreNATS}))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("promise"), d.Promise, []Promise{AtMostOnce, AtLeastOnce}))
	}
	return errs
}
