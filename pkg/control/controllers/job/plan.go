package job

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/engine/indexes"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// step is the maximum number of pods that one call creates, deletes or counts. It limits the UIDs in the status to
// 20 KB.
const step = 500

// Observed is the observed state.
type Observed struct {
	Job *batchv1.Job
	// Pods are the pods that the job controls, except ended ones that are counted and have no finalizer.
	Pods []*corev1.Pod
	// Orphans are pods in the job's namespace without a controller.
	Orphans []*corev1.Pod
	// Failures is the back-off as of the last status.
	Failures Failures
}

// Actions is what to do, in the order of the fields. A kill between any two changes no count: a pod keeps its finalizer
// until the status that counts it is written, and the status keeps its UID until the finalizer is removed.
type Actions struct {
	// Adopt are pods that the job takes control of or that get their finalizer back. Release are pods that no
	// longer match the selector. If either is set, no other action is.
	Adopt, Release []*corev1.Pod
	// Discard are excess active pods. They lose the finalizer, so that they are never counted, and are deleted.
	Discard []*corev1.Pod
	// Stop are active pods of a failed job. They are deleted, and counted as failed once the deletion is observed.
	Stop   []*corev1.Pod
	Create []Slot
	// Status is the status once all of the above has succeeded.
	Status batchv1.JobStatus
	// Failures is the back-off as of Status.
	Failures Failures
	// Untrack are pods that are counted or never will be. They lose the finalizer once Status is written.
	Untrack []*corev1.Pod
	// Events are recorded once Status is written.
	Events []Event
	// Again is the time until the deadline or the end of a back-off, 0 if there is none.
	Again time.Duration
	// More means that the next call has more to do at once.
	More bool
}

// Event is an event about the job.
type Event struct{ Type, Reason, Message string }

func finished(j *batchv1.Job) bool {
	return is(j.Status.Conditions, batchv1.JobComplete) || is(j.Status.Conditions, batchv1.JobFailed)
}

func is(list []batchv1.JobCondition, t batchv1.JobConditionType) bool {
	i := slices.IndexFunc(list, func(c batchv1.JobCondition) bool { return c.Type == t })
	return i >= 0 && list[i].Status == corev1.ConditionTrue
}

func suspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

// afterFailure reports whether pods are replaced only once they have failed, not while they terminate (KEP-3939).
func afterFailure(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
}

// Plan computes the actions. It does not change o.
func Plan(o Observed, now time.Time) (Actions, error) {
	p := &plan{Observed: o, now: now, deleting: o.Job.DeletionTimestamp != nil, completions: noIndex}
	p.Actions.Failures, p.status = o.Failures, *o.Job.Status.DeepCopy()
	if finished(o.Job) {
		for _, pod := range o.Pods {
			if tracked(pod) {
				p.untrack(pod)
			}
		}
		return p.decided(), nil
	}
	if o.Job.Spec.Completions != nil {
		p.completions = int(*o.Job.Spec.Completions)
	}
	for i := range p.status.Conditions {
		if c := &p.status.Conditions[i]; c.Status == corev1.ConditionTrue &&
			(c.Type == batchv1.JobFailureTarget || c.Type == batchv1.JobSuccessCriteriaMet) {
			p.verdict, p.recorded = c, true
		}
	}
	if err := p.claim(); err != nil {
		return Actions{}, err
	}
	if len(p.Adopt)+len(p.Release) > 0 {
		p.More = true
		return p.decided(), nil
	}
	p.classify()
	if p.status.StartTime == nil && !suspended(o.Job) {
		p.status.StartTime = stamp(now)
	}
	if p.verdict == nil {
		p.verdict = p.judge()
	}
	switch {
	case p.verdict != nil && !p.recorded:
		// Record the verdict before acting on it.
		p.status.Conditions = append(p.status.Conditions, *p.verdict)
		p.More = true
	case p.verdict != nil:
		p.stop()
	case !p.deleting:
		p.manage()
		p.showSuspended()
	}
	p.count()
	p.More = p.More || p.verdict != nil && len(p.Untrack) > 0
	p.finish()
	return p.decided(), nil
}

type plan struct {
	Observed
	Actions
	now         time.Time
	status      batchv1.JobStatus
	deleting    bool
	completions int // noIndex if not set

	members             []member
	active, terminating []*member
	uncounted           map[types.UID]bool // counted in the status, but still with a finalizer

	// succeeded and failed are totals including the observed pods. completed and failedIndexes are the same for
	// indexes.
	succeeded, failed        int
	completed, failedIndexes indexes.Set
	newSucceeded, newFailed  []*corev1.Pod
	// delayed are failed pods, by index. Each is counted only once its replacement exists, because the replacement
	// continues its failure count.
	delayed map[int]*member

	verdict  *batchv1.JobCondition // FailureTarget or SuccessCriteriaMet
	recorded bool                  // the verdict is already in the status
}

type outcome int

const (
	untracked  outcome = iota // without finalizer: never counted, or no longer
	unfinished                // not ended; may still be counted
	counted                   // recorded in the status
	ignored                   // ended, but does not count
	success
	failure
)

type member struct {
	*corev1.Pod
	index   int
	outcome outcome
	judged  judged
}

func (p *plan) decided() Actions {
	p.Actions.Status = p.status
	return p.Actions
}

func (p *plan) again(d time.Duration) {
	if d > 0 && (p.Again == 0 || d < p.Again) {
		p.Again = d
	}
}

func (p *plan) event(kind, reason, message string) {
	p.Events = append(p.Events, Event{kind, reason, message})
}

// untrack adds a pod to Untrack. It returns false if the step is full.
func (p *plan) untrack(pod *corev1.Pod) bool {
	if len(p.Untrack) == step {
		p.More = true
		return false
	}
	p.Untrack = append(p.Untrack, pod)
	return true
}

func (p *plan) claim() error {
	selector, err := metav1.LabelSelectorAsSelector(p.Job.Spec.Selector)
	if err != nil {
		return err
	}
	mayAdopt := !p.deleting && !p.recorded
	p.members = make([]member, 0, len(p.Pods))
	for _, pod := range p.Pods {
		switch {
		case !p.deleting && !selector.Matches(labels.Set(pod.Labels)):
			p.Release = append(p.Release, pod)
			continue
		case mayAdopt && !suspended(p.Job) && podstate.Active(pod) && !tracked(pod):
			p.Adopt = append(p.Adopt, pod) // a discard was interrupted, or another client removed the finalizer
		}
		p.members = append(p.members, member{Pod: pod, index: noIndex})
	}
	for _, pod := range p.Orphans {
		if mayAdopt && pod.DeletionTimestamp == nil && selector.Matches(labels.Set(pod.Labels)) && !p.known(pod) {
			p.Adopt = append(p.Adopt, pod)
		}
	}
	return nil
}

// known reports whether this job counted an ended orphan before its controller reference was removed.
func (p *plan) known(pod *corev1.Pod) bool {
	return podstate.Ended(pod) && !tracked(pod) && pod.Labels[batchv1.ControllerUidLabel] == string(p.Job.UID)
}

// judge determines whether the job has failed or succeeded.
func (p *plan) judge() *batchv1.JobCondition {
	spec := p.Job.Spec
	failed := func(reason, message string) *batchv1.JobCondition {
		return condition(batchv1.JobFailureTarget, corev1.ConditionTrue, reason, message, p.now)
	}
	for i := range p.members {
		if m := &p.members[i]; m.judged.action == batchv1.PodFailurePolicyActionFailJob {
			return failed(batchv1.JobReasonPodFailurePolicy, m.judged.message)
		}
	}
	if p.failed > int(*spec.BackoffLimit) || p.restartedTooOften() {
		return failed(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if spec.ActiveDeadlineSeconds != nil && !suspended(p.Job) {
		left := p.status.StartTime.Add(time.Duration(*spec.ActiveDeadlineSeconds) * time.Second).Sub(p.now)
		if left <= 0 {
			return failed(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		}
		p.again(left)
	}
	if perIndex(p.Job) {
		n := p.failedIndexes.Count()
		switch {
		case spec.MaxFailedIndexes != nil && n > int(*spec.MaxFailedIndexes):
			return failed(batchv1.JobReasonMaxFailedIndexesExceeded,
				"Job has exceeded the specified maximal number of failed indexes")
		case n > 0 && n+p.succeeded >= p.completions:
			return failed(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if indexed(p.Job) {
		if message, ok := succeeds(spec.SuccessPolicy, p.completed, p.completions); ok {
			return condition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonSuccessPolicy, message, p.now)
		}
	}
	if len(p.active) > 0 || p.succeeded < p.completions || p.completions == noIndex && p.succeeded == 0 {
		return nil
	}
	return condition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonCompletionsReached,
		"Reached expected number of succeeded pods", p.now)
}

// restartedTooOften checks the container restarts of pods with restartPolicy OnFailure against the back-off limit.
func (p *plan) restartedTooOften() bool {
	if p.Job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var restarts int32
	for i := range p.members {
		if s := &p.members[i].Status; s.Phase == corev1.PodRunning || s.Phase == corev1.PodPending {
			for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
				for j := range list {
					restarts += list[j].RestartCount
				}
			}
		}
	}
	return restarts >= max(*p.Job.Spec.BackoffLimit, 1)
}

// stop ends the active pods of a job with a verdict. If the job succeeded, they are not counted.
func (p *plan) stop() {
	pods := make([]*corev1.Pod, 0, min(len(p.active), step))
	for _, m := range p.active[:min(len(p.active), step)] {
		pods = append(pods, m.Pod)
	}
	p.More = p.More || len(p.active) > step
	if p.verdict.Type == batchv1.JobFailureTarget {
		p.Stop = pods
	} else {
		p.Discard = pods
	}
}

// showSuspended maintains the Suspended condition and the start time, which a resumption resets.
func (p *plan) showSuspended() {
	i := slices.IndexFunc(p.status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
	switch was := i >= 0 && p.status.Conditions[i].Status == corev1.ConditionTrue; {
	case suspended(p.Job) && !was:
		c := *condition(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended", p.now)
		if i < 0 {
			p.status.Conditions = append(p.status.Conditions, c)
		} else {
			p.status.Conditions[i] = c
		}
		p.status.StartTime = nil
		p.event(corev1.EventTypeNormal, "Suspended", c.Message)
	case !suspended(p.Job) && was:
		p.status.Conditions[i] = *condition(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed", p.now)
		p.status.StartTime = stamp(p.now)
		p.event(corev1.EventTypeNormal, "Resumed", "Job resumed")
	}
}

// finish ends the job once all its remaining pods are counted.
func (p *plan) finish() {
	if p.verdict == nil || len(p.active)+len(p.terminating) > 0 || len(p.uncounted) > 0 ||
		slices.ContainsFunc(p.members, func(m member) bool { return m.outcome != untracked }) {
		return
	}
	p.More = false
	if p.status.StartTime == nil && p.completions != 0 {
		// Its pods ended after it was suspended, and validation requires a start time of a finished job.
		p.status.StartTime = stamp(p.now)
	}
	if p.verdict.Type == batchv1.JobFailureTarget {
		p.status.Conditions = append(p.status.Conditions,
			*condition(batchv1.JobFailed, corev1.ConditionTrue, p.verdict.Reason, p.verdict.Message, p.now))
		p.event(corev1.EventTypeWarning, p.verdict.Reason, p.verdict.Message)
		return
	}
	p.status.Conditions = append(p.status.Conditions,
		*condition(batchv1.JobComplete, corev1.ConditionTrue, p.verdict.Reason, p.verdict.Message, p.now))
	p.status.CompletionTime = stamp(p.now)
	if p.completions != noIndex && p.succeeded > p.completions {
		p.event(corev1.EventTypeWarning, "TooManySucceededPods",
			"Too many succeeded pods running after completion count reached")
	}
	p.event(corev1.EventTypeNormal, "Completed", "Job completed")
}

// stamp truncates a time to the precision of the API: upstream's validation compares the start time with the one
// that clients send back.
func stamp(t time.Time) *metav1.Time {
	return new(metav1.Unix(t.Unix(), 0))
}

func condition(t batchv1.JobConditionType, s corev1.ConditionStatus, reason, message string,
	now time.Time) *batchv1.JobCondition {
	at := *stamp(now)
	return &batchv1.JobCondition{
		Type:               t,
		Status:             s,
		LastProbeTime:      at,
		LastTransitionTime: at,
		Reason:             cmp.Or(reason, string(t)),
		Message:            message,
	}
}
