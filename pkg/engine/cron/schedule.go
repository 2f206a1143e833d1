package cron

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the machine may lack time zone data

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

const (
	// late is how long after the scheduled time a timer fires, so that small clock differences do not matter.
	late = 100 * time.Millisecond
	// oldest bounds the search for missed runs, whatever the status contains.
	oldest = 10 * 365 * 24 * time.Hour
	// many is the number of missed runs above which a warning is recorded.
	many = 100
)

// errNever is the error for schedules such as "0 0 30 2 *", which never match.
var errNever = errors.New("no time matches it, so it never runs")

// Parse parses the schedule in its time zone. The library panics on some inputs.
func Parse(c *batchv1.CronJob) (s cron.Schedule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("invalid schedule format: %v", p)
		}
	}()
	line := c.Spec.Schedule
	if c.Spec.TimeZone != nil && !strings.Contains(line, "TZ") {
		line = "TZ=" + *c.Spec.TimeZone + " " + line
	}
	return cron.ParseStandard(line)
}

// runs is the result of look.
type runs struct {
	since  time.Time // start of the searched period
	due    time.Time // the latest run that is due; zero if none
	missed bool      // more than one run is due
	many   bool      // more than many runs are due
}

// look finds the latest run since the last recorded one, or since the cron job was created.
func look(c *batchv1.CronJob, s cron.Schedule, now time.Time, deadline bool) (runs, error) {
	since := c.CreationTimestamp.Time
	if c.Status.LastScheduleTime != nil {
		since = c.Status.LastScheduleTime.Time
	}
	earliest := now.Add(-oldest)
	if deadline && c.Spec.StartingDeadlineSeconds != nil {
		earliest = now.Add(-min(oldest,
			time.Duration(min(*c.Spec.StartingDeadlineSeconds, int64(oldest/time.Second)))*time.Second))
	}
	if earliest.After(since) {
		since = earliest
	}
	r := runs{since: since}
	first := s.Next(since)
	if now.Before(first) {
		return r, nil
	}
	second := s.Next(first)
	if now.Before(second) {
		r.due = first
		return r, nil
	}
	apart := second.Sub(first).Round(time.Second)
	if first.IsZero() || apart < time.Second {
		return r, errNever
	}
	n := int64(now.Sub(first)/apart) + 1
	r.missed, r.many = true, n > many
	// Most of the period is skipped using the first interval, and the rest is iterated, since intervals may differ. If
	// that skips too much, for example into a month without runs, the step back doubles until a run is found.
	from := first.Add(time.Duration(n-2) * apart)
	for back := 2 * apart; s.Next(from).After(now); back *= 2 {
		from = now.Add(-back)
	}
	for t := s.Next(from); !t.IsZero() && !t.After(now); t = s.Next(t) {
		r.due = t
	}
	return r, nil
}

// Next returns the time until the first run that is not due yet; 0 if there is none.
func Next(c *batchv1.CronJob, s cron.Schedule, now time.Time) time.Duration {
	from := now
	if r, err := look(c, s, now, false); err == nil {
		switch {
		case !r.due.IsZero():
			from = r.due
		case !r.missed:
			from = r.since
		}
	}
	at := s.Next(from)
	if at.IsZero() {
		return 0
	}
	return max(at.Add(late).Sub(now), time.Millisecond)
}
