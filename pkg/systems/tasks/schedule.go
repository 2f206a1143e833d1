package tasks

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the machine may lack time zone data

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

func validateSchedule(s *tasks.TaskSchedule) field.ErrorList {
	errs := tasks.ValidateSchedule(s)
	if len(errs) > 0 {
		return errs
	}
	spec := field.NewPath("spec")
	if err := validCron(s.Spec.Schedule); err != nil && s.Spec.Schedule != "" {
		errs = append(errs, field.Invalid(spec.Child("schedule"), s.Spec.Schedule, err.Error()))
	}
	if strings.Contains(s.Spec.Schedule, "TZ") {
		errs = append(errs, field.Invalid(spec.Child("schedule"), s.Spec.Schedule, "cannot have a time zone: use timeZone"))
	}
	if z := s.Spec.TimeZone; z != nil {
		if _, err := time.LoadLocation(*z); err != nil || *z == "" || strings.EqualFold(*z, "local") {
			errs = append(errs,
				field.Invalid(spec.Child("timeZone"), *z, "is not the name of a time zone, such as Europe/Paris"))
		}
	}
	at, err := s.NewTask(example(s.Spec.Parameters))
	if err != nil {
		return append(errs, field.Invalid(spec.Child("parameters"), "", err.Error()))
	}
	at.Spec.Env = at.Spec.Env[len(s.Spec.Parameters):] // they are valid, and errors name positions in the template
	return append(errs, validatePod(at, spec.Child("taskTemplate", "spec"))...)
}

// example returns arguments for the parameters that need one.
func example(list []tasks.TaskParameter) map[string]string {
	args := map[string]string{}
	for _, p := range list {
		if p.Value == nil {
			args[p.Name] = ""
		}
	}
	return args
}

// validCron parses a cron expression. The library panics on some inputs.
func validCron(line string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	_, err = cron.ParseStandard(line)
	return err
}
