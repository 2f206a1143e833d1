package v1alpha1

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the machine may lack time zone data

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of sync windows.
const (
	maxWindows   = 16
	maxSchedule  = 256
	minDuration  = time.Minute
	mostDuration = 31 * 24 * time.Hour
)

// Begins parses the schedule. Its time zone never depends on this machine's.
func (w *SyncWindow) Begins() (s cron.Schedule, err error) {
	defer func() { // the library panics on some inputs
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	switch {
	case len(w.Schedule) > maxSchedule:
		return nil, fmt.Errorf("has more than %d bytes", maxSchedule)
	case strings.Contains(w.Schedule, "TZ="):
		return nil, errors.New("has a time zone: use timeZone")
	case strings.HasPrefix(strings.TrimSpace(w.Schedule), "@every"):
		return nil, errors.New("@every begins when a process does: use a time, such as 0 * * * *")
	}
	zone, err := w.zone()
	if err != nil {
		return nil, err
	}
	return cron.ParseStandard("TZ=" + zone + " " + w.Schedule)
}

func (w *SyncWindow) zone() (string, error) {
	switch {
	case w.TimeZone == "":
		return "UTC", nil
	case strings.EqualFold(w.TimeZone, "local") || len(w.TimeZone) > maxSchedule ||
		strings.ContainsAny(w.TimeZone, " \t\n"):
		return "", fmt.Errorf("%q is no time zone, such as Europe/Berlin", cut(w.TimeZone, maxSchedule))
	}
	if _, err := time.LoadLocation(w.TimeZone); err != nil {
		return "", fmt.Errorf("%q is no time zone, such as Europe/Berlin", w.TimeZone)
	}
	return w.TimeZone, nil
}

// String describes the window.
func (w *SyncWindow) String() string {
	text := fmt.Sprintf("%q for %s", w.Schedule, w.Duration.Duration)
	if w.TimeZone != "" {
		text += " in " + w.TimeZone
	}
	return text
}

func validateWindows(list []SyncWindow, at *field.Path) (errs field.ErrorList) {
	if n := len(list); n > maxWindows {
		return field.ErrorList{field.TooMany(at, n, maxWindows)}
	}
	for i := range list {
		w, at := &list[i], at.Index(i)
		errs = append(errs, oneOf(at.Child("kind"), w.Kind, WindowAllow, WindowDeny)...)
		if d := w.Duration.Duration; d < minDuration || d > mostDuration {
			errs = append(errs, field.Invalid(at.Child("duration"), d.String(), "must be from 1m to 744h"))
		}
		if _, err := w.zone(); err != nil {
			errs = append(errs, field.Invalid(at.Child("timeZone"), cut(w.TimeZone, maxSchedule), err.Error()))
		} else if s, err := w.Begins(); err != nil {
			errs = append(errs, field.Invalid(at.Child("schedule"), cut(w.Schedule, maxSchedule), err.Error()))
		} else if s.Next(time.Unix(0, 0)).IsZero() {
			errs = append(errs, field.Invalid(at.Child("schedule"), w.Schedule, "never comes"))
		}
	}
	return errs
}
