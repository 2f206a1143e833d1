package workers

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/systems/workers/controller"
)

// validate validates a worker. Errors of its pods name fields below spec.template.
func validate(w *workers.Worker) field.ErrorList {
	if errs := workers.Validate(w); len(errs) > 0 || w.Spec.Template == nil {
		return errs
	}
	t := controller.Template(w)
	errs := builtin.ValidatePod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "worker", Namespace: "default", Labels: t.Labels, Annotations: t.Annotations},
		Spec:       t.Spec,
	})
	for _, e := range errs {
		e.Field = "spec.template." + strings.TrimPrefix(e.Field, "spec.template.")
	}
	return errs
}

// validateUpdate validates an update. All fields may change.
func validateUpdate(w, _ *workers.Worker) field.ErrorList { return validate(w) }
