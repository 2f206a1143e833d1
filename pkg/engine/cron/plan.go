// Package cron decides when objects with a cron schedule run: CronJobs, and task schedules in the form of CronJobs. Its
// invariant: Plan is pure, and each scheduled time has at most one run, whose name derives from the time.
package cron

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	kind    = batchv1.SchemeGroupVersion.WithKind("CronJob")
	jobKind = batchv1.SchemeGroupVersion.WithKind("Job")
)

// Observed is the observed state.
type Observed struct {
	CronJob *batchv1.CronJob
	// Jobs are the jobs that the cron job controls.
	Jobs []*batchv1.Job
}

// Actions are the results of a plan, in the order to carry them out.
type Actions struct {
	// Delete are the jobs beyond the history limits, and the jobs that the next run replaces.
	Delete []*batchv1.Job
	// Create is the job of the run that was due at Scheduled, or nil. Its name derives from that time, so each run
	// happens once.
	Create    *batchv1.Job
	Scheduled time.Time
	// Status is the status without Create; see Started.
	Status batchv1.CronJobStatus
	Events []Event
	// Again is the time until the next run; 0 means none.
	Again time.Duration
}

// Event is an event about the cron job.
type Event struct{ Type, Reason, Message string }

// Plan computes the actions. It does not change o.
func Plan(o Observed, now time.Time) Actions {
	p := &plan{Observed: o, now: now, spec: &o.CronJob.Spec}
	p.Status = *o.CronJob.Status.DeepCopy()
	p.followJobs()
	if o.CronJob.DeletionTimestamp == nil {
		p.schedule()
	}
	p.trimHistory()
	return p.Actions
}

type plan struct {
	Observed
	Actions
	spec *batchv1.CronJobSpec
	now  time.Time
	// unrecorded is a job whose run is not in the status yet.
	unrecorded *batchv1.Job
}

func (p *plan) normal(reason, format string, args ...any) {
	p.Events = append(p.Events, Event{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)})
}

func (p *plan) warn(reason, format string, args ...any) {
	p.Events = append(p.Events, Event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)})
}

func (p *plan) active(uid types.UID) bool {
	return slices.ContainsFunc(p.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == uid })
}

func (p *plan) dropActive(uid types.UID) {
	p.Status.Active = slices.DeleteFunc(p.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == uid })
}

// Ended returns Complete or Failed, or an empty string if the job has not ended.
func Ended(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

func (p *plan) followJobs() {
	there := make(map[types.UID]bool, len(p.Jobs))
	for _, j := range p.Jobs {
		there[j.UID] = true
		how := Ended(j)
		switch {
		case how == "" && !p.active(j.UID):
			p.warn("UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
		case how != "" && p.active(j.UID):
			p.dropActive(j.UID)
			p.normal("SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, how)
		}
		if at := j.Status.CompletionTime; how == batchv1.JobComplete && at != nil &&
			(p.Status.LastSuccessfulTime == nil || at.After(p.Status.LastSuccessfulTime.Time)) {
			p.Status.LastSuccessfulTime = at
		}
	}
	for _, ref := range slices.Clone(p.Status.Active) {
		if !there[ref.UID] {
			p.normal("MissingJob", "Active job went missing: %v", ref.Name)
			p.dropActive(ref.UID)
		}
	}
}

func (p *plan) trimHistory() {
	for how, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: p.spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: p.spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		var list []*batchv1.Job
		for _, j := range p.Jobs {
			if Ended(j) == how && j.DeletionTimestamp == nil && j != p.unrecorded { // an unrecorded run would happen again
				list = append(list, j)
			}
		}
		slices.SortFunc(list, func(a, b *batchv1.Job) int {
			return cmp.Or(startedAt(a).Compare(startedAt(b)), cmp.Compare(a.Name, b.Name))
		})
		p.Delete = append(p.Delete, list[:max(len(list)-int(*limit), 0)]...)
	}
}

// startedAt returns when a job started. Jobs that have not started, such as suspended ones, count as the youngest.
func startedAt(j *batchv1.Job) time.Time {
	if j.Status.StartTime == nil {
		return j.CreationTimestamp.Add(oldest)
	}
	return j.Status.StartTime.Time
}

// schedule starts the run that is due, if any, and computes the time of the next one.
func (p *plan) schedule() {
	c := p.CronJob
	if z := p.spec.TimeZone; z != nil {
		if _, err := time.LoadLocation(*z); err != nil {
			p.warn("UnknownTimeZone", "invalid timeZone: %q: %s", *z, err)
			return
		}
	}
	if p.spec.Suspend != nil && *p.spec.Suspend {
		return
	}
	if strings.Contains(p.spec.Schedule, "TZ") {
		p.warn("UnsupportedSchedule", "CRON_TZ or TZ used in schedule %q is not officially supported, see "+
			"https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", p.spec.Schedule)
	}
	s, err := Parse(c)
	if err != nil {
		p.warn("UnparseableSchedule", "unparseable schedule: %q : %s", p.spec.Schedule, err)
		return
	}
	r, err := look(c, s, p.now, true)
	if err != nil {
		p.warn("InvalidSchedule", "invalid schedule: %s : %s", p.spec.Schedule, err)
		return
	}
	p.Again = Next(c, s, p.now)
	if r.due.IsZero() {
		if p.Again == 0 {
			p.warn("InvalidSchedule", "invalid schedule: %s : %s", p.spec.Schedule, errNever)
		}
		return
	}
	if r.many {
		p.warn("TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	p.start(r.due)
}

// start starts the run that was due at a time, unless it is too late, was started already, or must not run
// concurrently with another one.
func (p *plan) start(due time.Time) {
	if d := p.spec.StartingDeadlineSeconds; d != nil &&
		p.now.Sub(due) > time.Duration(min(*d, int64(oldest/time.Second)))*time.Second {
		p.warn("MissSchedule", "Missed scheduled time to start a job: %s", due.UTC().Format(time.RFC1123Z))
		return
	}
	job := newJob(p.CronJob, due)
	if last := p.Status.LastScheduleTime; last != nil && last.Time.Equal(due) ||
		slices.ContainsFunc(p.Status.Active, func(r corev1.ObjectReference) bool { return r.Name == job.Name }) {
		return
	}
	if i := slices.IndexFunc(p.Jobs, func(j *batchv1.Job) bool { return j.Name == job.Name }); i >= 0 {
		// The call that created it was interrupted before it wrote the status.
		p.unrecorded = p.Jobs[i]
		p.Status = Started(p.Status, p.unrecorded, due)
		return
	}
	if p.spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(p.Status.Active) > 0 {
		p.normal("JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return
	}
	if p.spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent {
		for _, j := range p.Jobs {
			if p.active(j.UID) {
				p.Delete = append(p.Delete, j)
				p.dropActive(j.UID)
			}
		}
	}
	p.Create, p.Scheduled = job, due
}

// Started returns the status after the creation of a run's job.
func Started(s batchv1.CronJobStatus, j *batchv1.Job, at time.Time) batchv1.CronJobStatus {
	s.LastScheduleTime = new(metav1.Unix(at.Unix(), 0))
	if Ended(j) == "" {
		s.Active = append(slices.Clip(s.Active), corev1.ObjectReference{
			APIVersion: jobKind.GroupVersion().String(), Kind: jobKind.Kind, Namespace: j.Namespace, Name: j.Name, UID: j.UID,
			ResourceVersion: j.ResourceVersion,
		})
	}
	return s
}

// newJob returns the job for a run. Its name contains the minutes since 1970.
func newJob(c *batchv1.CronJob, at time.Time) *batchv1.Job {
	zone := time.UTC
	if c.Spec.TimeZone != nil {
		if z, err := time.LoadLocation(*c.Spec.TimeZone); err == nil {
			zone = z
		}
	}
	annotations := maps.Clone(c.Spec.JobTemplate.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: fmt.Sprintf("%s-%d", c.Name, at.Unix()/60),
			Labels: maps.Clone(c.Spec.JobTemplate.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, kind)},
		},
		Spec: *c.Spec.JobTemplate.Spec.DeepCopy(),
	}
}
