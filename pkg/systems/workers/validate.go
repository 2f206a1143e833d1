package workers

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/engine/cron"
	"github.com/coracle-dev/coracle/pkg/systems/workers/controller"
	"github.com/coracle-dev/coracle/pkg/systems/workers/trigger"
)

// validate validates a worker and its pods.
func validate(w *workers.Worker) field.ErrorList {
	if errs := workers.Validate(w); len(errs) > 0 {
		return errs
	}
	if errs := validateSchedules(w.Spec.Triggers, field.NewPath("spec", "triggers")); len(errs) > 0 {
		return errs
	}
	t := controller.Template(w)
	errs := builtin.ValidatePod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "worker", Namespace: "default", Labels: t.Labels, Annotations: t.Annotations},
		Spec:       t.Spec,
	})
	for _, e := range errs {
		e.Field = workerField(e.Field, w.Spec.Template, t.Spec.Containers)
	}
	return errs
}

// maxScheduleText bounds the text of a schedule and of a time zone, in bytes.
const maxScheduleText = 256

// validateSchedules validates the schedules of triggers, by the rules of CronJobs.
func validateSchedules(list []workers.WorkerTrigger, path *field.Path) (errs field.ErrorList) {
	for i := range list {
		t, at := &list[i], path.Index(i)
		if t.Schedule == "" {
			continue
		}
		invalid := func(name, is, why string) {
			errs = append(errs, field.Invalid(at.Child(name), bounded.Text(is, maxScheduleText), why))
		}
		_, zone := time.LoadLocation(t.TimeZone)
		switch {
		case len(t.Schedule) > maxScheduleText:
			invalid("schedule", t.Schedule, "has at most "+strconv.Itoa(maxScheduleText)+" bytes")
		case zone != nil || strings.EqualFold(t.TimeZone, "local"):
			invalid("timeZone", t.TimeZone, "is not the name of a time zone, such as Europe/Paris")
		case strings.Contains(t.Schedule, "TZ"):
			invalid("schedule", t.Schedule, "cannot have a time zone: use timeZone")
		case strings.HasPrefix(t.Schedule, "@every"):
			invalid("schedule", t.Schedule, "needs times, not an interval, such as */5 * * * *")
		default:
			line, err := cron.Parse(trigger.CronJob(t, metav1.Time{}, nil))
			if err != nil {
				invalid("schedule", t.Schedule, err.Error())
			} else if line.Next(time.Now()).IsZero() {
				invalid("schedule", t.Schedule, "no time matches it")
			}
		}
	}
	return errs
}

// validateUpdate validates an update. The messages of a queue cannot change their store.
func validateUpdate(w, old *workers.Worker) field.ErrorList {
	errs := validate(w)
	if is := w.Spec.Delivery.Store; (is == workers.StoreNATS) != (old.Spec.Delivery.Store == workers.StoreNATS) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "delivery", "store"), is,
			"cannot be changed: delete the worker, once its queue is empty, and create it again"))
	}
	return errs
}

var (
	inContainer = regexp.MustCompile(`^spec\.containers\[(\d+)\]`)
	ofWorker    = regexp.MustCompile(`^\.(image|command|args|env|resources)\b`)
)

// workerField converts a path in a worker's pod to a path in the worker.
func workerField(path string, t *corev1.PodTemplateSpec, pod []corev1.Container) string {
	m := inContainer.FindStringSubmatch(path)
	if m == nil {
		return "spec.template." + path
	}
	n, _ := strconv.Atoi(m[1]) // digits of an index
	rest := strings.TrimPrefix(path, m[0])
	if pod[n].Name == workers.ContainerName && ofWorker.MatchString(rest) {
		return "spec" + rest
	}
	at := -1
	if t != nil {
		at = slices.IndexFunc(t.Spec.Containers, func(c corev1.Container) bool { return c.Name == pod[n].Name })
	}
	if at < 0 { // the worker adds the container, for example with the port of spec.push
		return "spec" + rest
	}
	return fmt.Sprintf("spec.template.spec.containers[%d]%s", at, rest)
}
