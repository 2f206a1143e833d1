package cron

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 2, 10, 30, 20, 0, time.UTC) // a Friday

func cronJob(line string, change ...func(*batchv1.CronJob)) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "ns",
			Name:              "c",
			UID:               "c",
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		},
	}
	c.Spec.Schedule, c.Spec.ConcurrencyPolicy = line, batchv1.AllowConcurrent
	for _, f := range change {
		f(c)
	}
	return c
}

func created(ago time.Duration) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
}
func last(ago time.Duration) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Status.LastScheduleTime = &metav1.Time{Time: now.Add(-ago)} }
}
func zone(z string) func(*batchv1.CronJob) { return func(c *batchv1.CronJob) { c.Spec.TimeZone = &z } }
func within(s int64) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &s }
}
func suspend(c *batchv1.CronJob) { yes := true; c.Spec.Suspend = &yes }
func deleted(c *batchv1.CronJob) { c.DeletionTimestamp = &metav1.Time{Time: now} }
func policy(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = p }
}
func running(names ...string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) {
		for _, n := range names {
			c.Status.Active = append(c.Status.Active, corev1.ObjectReference{Name: n, UID: types.UID(n)})
		}
	}
}

func job(name string, how batchv1.JobConditionType, ago time.Duration) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	at := metav1.NewTime(now.Add(-ago))
	j.Status.StartTime = &at
	if how != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue}}
	}
	if how == batchv1.JobComplete {
		j.Status.CompletionTime = &at
	}
	return j
}

func reasons(a Actions) (out []string) {
	for _, e := range a.Events {
		out = append(out, e.Reason)
	}
	return out
}

func TestSchedule(t *testing.T) {
	half := time.Date(2026, 1, 2, 10, 30, 0, 0, time.UTC)
	minutes := func(at time.Time) string { return fmt.Sprintf("c-%d", at.Unix()/60) }
	tomorrow := 24*time.Hour - 20*time.Second + late
	for name, c := range map[string]struct {
		cronJob *batchv1.CronJob
		jobs    []*batchv1.Job
		run     time.Time // zero: none
		again   time.Duration
		reasons []string
		deletes int
	}{
		"due": {cronJob: cronJob("30 * * * *"), run: half, again: time.Hour - 20*time.Second + late},
		"done": {
			cronJob: cronJob("30 * * * *", last(20*time.Second)), again: time.Hour - 20*time.Second + late,
		},
		"not yet": {cronJob: cronJob("31 10 * * *"), again: 40*time.Second + late},
		"several missed, one run": {
			cronJob: cronJob("*/10 * * * *"), run: half, again: 10*time.Minute - 20*time.Second + late,
		},
		"many missed": {
			cronJob: cronJob("* * * * *", created(48*time.Hour)), run: half, again: 40*time.Second + late,
			reasons: []string{"TooManyMissedTimes"},
		},
		"many missed, few recently": {
			cronJob: cronJob("* * * * *", created(48*time.Hour), within(200)), run: half, again: 40*time.Second + late,
		},
		"too late":    {cronJob: cronJob("30 10 * * *", within(10)), again: tomorrow},
		"suspended":   {cronJob: cronJob("30 * * * *", suspend)},
		"deleted":     {cronJob: cronJob("30 * * * *", deleted)},
		"in its zone": {cronJob: cronJob("30 19 * * *", zone("Asia/Tokyo")), run: half, again: tomorrow},
		"unknown zone": {
			cronJob: cronJob("30 * * * *", zone("Moon/Base")), reasons: []string{"UnknownTimeZone"},
		},
		"zone in the schedule": {
			cronJob: cronJob("TZ=Asia/Tokyo 30 19 * * *"), run: half, again: tomorrow, reasons: []string{"UnsupportedSchedule"},
		},
		"unreadable": {cronJob: cronJob("every day"), reasons: []string{"UnparseableSchedule"}},
		"the library panics": {
			cronJob: cronJob("TZ=0"), reasons: []string{"UnsupportedSchedule", "UnparseableSchedule"},
		},
		"never": {cronJob: cronJob("0 0 30 2 *"), reasons: []string{"InvalidSchedule"}},
		"leap day": {
			cronJob: cronJob("0 0 29 2 *"), again: time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC).Add(late).Sub(now),
		},
		"forbid": {
			cronJob: cronJob("30 * * * *", policy(batchv1.ForbidConcurrent), running("a")),
			jobs:    []*batchv1.Job{job("a", "", time.Hour)}, again: time.Hour - 20*time.Second + late,
			reasons: []string{"JobAlreadyActive"},
		},
		"forbid, but it has ended": {
			cronJob: cronJob("30 * * * *", policy(batchv1.ForbidConcurrent), running("a")),
			jobs:    []*batchv1.Job{job("a", batchv1.JobFailed, time.Hour)}, run: half, again: time.Hour - 20*time.Second + late,
			reasons: []string{"SawCompletedJob"},
		},
		"replace": {
			cronJob: cronJob("30 * * * *", policy(batchv1.ReplaceConcurrent), running("a")),
			jobs:    []*batchv1.Job{job("a", "", time.Hour)}, run: half, deletes: 1, again: time.Hour - 20*time.Second + late,
		},
		"allow": {
			cronJob: cronJob("30 * * * *", running("a")), jobs: []*batchv1.Job{job("a", "", time.Hour)}, run: half,
			again: time.Hour - 20*time.Second + late,
		},
		"killed before the status": {
			cronJob: cronJob("30 * * * *"), jobs: []*batchv1.Job{job(minutes(half), "", 0)},
			again: time.Hour - 20*time.Second + late, reasons: []string{"UnexpectedJob"},
		},
		"missing": {
			cronJob: cronJob("30 * * * *", last(20*time.Second), running("a")), again: time.Hour - 20*time.Second + late,
			reasons: []string{"MissingJob"},
		},
		"clock set back": {
			cronJob: cronJob("30 * * * *", last(-48*time.Hour)),
			again:   49*time.Hour - 20*time.Second + late - time.Hour + 60*time.Minute,
		},
		"last run in the year 1": {
			cronJob: cronJob("* * * * *", func(c *batchv1.CronJob) {
				c.Status.LastScheduleTime = &metav1.Time{Time: time.Time{}.Add(time.Hour)}
			}), run: half, again: 40*time.Second + late, reasons: []string{"TooManyMissedTimes"},
		},
		"dense after a long gap": {
			cronJob: cronJob("* * * 2-12 *", created(3*365*24*time.Hour)), run: time.Date(2025, 12, 31, 23, 59, 0, 0, time.UTC),
			again: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC).Add(late).Sub(now), reasons: []string{"TooManyMissedTimes"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := Plan(Observed{CronJob: c.cronJob, Jobs: c.jobs}, now)
			require.Equal(t, c.reasons, reasons(a))
			require.Equal(t, c.again, a.Again)
			if name == "never" {
				require.Equal(t, "invalid schedule: 0 0 30 2 * : no time matches it, so it never runs", a.Events[0].Message)
			}
			require.Len(t, a.Delete, c.deletes)
			if c.run.IsZero() {
				require.Nil(t, a.Create)
				return
			}
			require.NotNil(t, a.Create)
			require.Equal(t, c.run, a.Scheduled.UTC())
			require.Equal(t, minutes(c.run), a.Create.Name)
		})
	}
}

func TestJobSaysWhenItWasScheduled(t *testing.T) {
	c := cronJob("30 19 * * *", zone("Asia/Tokyo"))
	c.Spec.JobTemplate.Annotations, c.Spec.JobTemplate.Labels = map[string]string{"a": "b"}, map[string]string{"l": "m"}
	j := Plan(Observed{CronJob: c}, now).Create
	require.Equal(t, map[string]string{"a": "b", batchv1.CronJobScheduledTimestampAnnotation: "2026-01-02T19:30:00+09:00"},
		j.Annotations)
	require.Equal(t, map[string]string{"l": "m"}, j.Labels)
	require.True(t, metav1.IsControlledBy(j, c))
	require.NotContains(t, c.Spec.JobTemplate.Annotations, batchv1.CronJobScheduledTimestampAnnotation,
		"Plan changes no input")
}

func TestHistory(t *testing.T) {
	one, none := int32(1), int32(0)
	c := cronJob("31 10 * * *", running("d"))
	c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = &one, &none
	going := job("e", batchv1.JobComplete, 5*time.Hour)
	going.DeletionTimestamp = &metav1.Time{Time: now}
	a := Plan(Observed{CronJob: c, Jobs: []*batchv1.Job{
		job("a", batchv1.JobComplete, 2*time.Hour), job("b", batchv1.JobComplete, time.Hour),
		job("c", batchv1.JobComplete, 3*time.Hour),
		job("d", batchv1.JobFailed, time.Hour), going, job("f", "", time.Minute),
	}}, now)
	var names []string
	for _, j := range a.Delete {
		names = append(names, j.Name)
	}
	require.ElementsMatch(t, []string{"c", "a", "d"}, names)
	require.Empty(t, a.Status.Active)
	require.Equal(t, now.Add(-time.Hour), a.Status.LastSuccessfulTime.Time)
}

// TestModel checks that each run happens once, even if the process is killed at any time, and that a second plan
// starts nothing.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := now
		c := cronJob(rapid.SampledFrom([]string{"* * * * *", "*/5 * * * *", "@every 90s", "0 10-12 * * 5"}).Draw(t, "line"),
			created(0),
			policy(rapid.SampledFrom([]batchv1.ConcurrencyPolicy{
				batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent,
			}).Draw(t, "policy")))
		limit := int32(rapid.IntRange(0, 3).Draw(t, "limit"))
		c.Spec.SuccessfulJobsHistoryLimit = &limit
		jobs, ever := map[string]*batchv1.Job{}, map[string]bool{}
		observe := func() Observed {
			o := Observed{CronJob: c}
			for _, j := range jobs {
				o.Jobs = append(o.Jobs, j)
			}
			return o
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			a := Plan(observe(), at)
			dies := rapid.IntRange(0, 4).Draw(t, "dies after")
			for _, j := range a.Delete {
				delete(jobs, j.Name)
			}
			if a.Create != nil && dies != 0 {
				require.False(t, ever[a.Create.Name], "one job for a scheduled time")
				require.False(t, a.Scheduled.After(at))
				ever[a.Create.Name] = true
				j := a.Create.DeepCopy()
				j.UID = types.UID(j.Name)
				jobs[j.Name] = j
				a.Status = Started(a.Status, j, a.Scheduled)
				unfinished := 0
				for _, j := range jobs {
					if Ended(j) == "" {
						unfinished++
					}
				}
				if c.Spec.ConcurrencyPolicy != batchv1.AllowConcurrent {
					require.Equal(t, 1, unfinished)
				}
			}
			if dies > 1 {
				c = c.DeepCopy()
				c.Status = a.Status
				again := Plan(observe(), at)
				require.Nil(t, again.Create)
				require.Equal(t, c.Status, again.Status)
				require.Positive(t, again.Again)
			}
			if rapid.Bool().Draw(t, "a job ends") {
				for n, j := range jobs {
					if Ended(j) == "" {
						jobs[n] = job(n, batchv1.JobComplete, 0)
						break
					}
				}
			}
			if dies > 1 {
				at = at.Add(time.Duration(rapid.IntRange(0, 200).Draw(t, "seconds")) * time.Second)
			}
		}
	})
}
