package tasks

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
)

func validate(t *tasks.Task) field.ErrorList {
	if errs := tasks.Validate(t); len(errs) > 0 {
		return errs
	}
	return validatePod(t, field.NewPath("spec"))
}

// validatePod validates the pod of a valid task. Errors name fields of the task, below spec.
func validatePod(t *tasks.Task, spec *field.Path) field.ErrorList {
	example := t.DeepCopy()
	example.Name, example.Namespace, example.UID = "task", "default", "00000000-0000-0000-0000-000000000000"
	versioned := tasks.Pod(example, &tasks.TaskAttempt{Number: 1})
	errs := builtin.ValidatePod(versioned)
	own := len(versioned.Spec.Containers[0].Env) - len(t.Spec.Env)
	for _, e := range errs {
		e.Field = spec.String() + taskField(e.Field, own)
	}
	return errs
}

var (
	inContainer = regexp.MustCompile(`^spec\.containers\[0\]`)
	inMount     = regexp.MustCompile(`^\.volumeMounts\[`)
	inEnv       = regexp.MustCompile(`^\.env\[(\d+)\]`)
)

// taskField converts a path in a task's pod to a path below the task's spec. The first own variables of the pod are
// not the task's.
func taskField(path string, own int) string {
	if !inContainer.MatchString(path) {
		return strings.TrimPrefix(path, "spec")
	}
	path = inContainer.ReplaceAllString(path, "")
	if m := inEnv.FindStringSubmatch(path); m != nil {
		if i, err := strconv.Atoi(m[1]); err == nil && i >= own {
			return fmt.Sprintf(".env[%d]%s", i-own, strings.TrimPrefix(path, m[0]))
		}
	}
	return inMount.ReplaceAllString(path, ".volumes[")
}
