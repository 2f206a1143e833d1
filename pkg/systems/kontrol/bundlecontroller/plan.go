package bundlecontroller

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/window"
)

// Observed is the input of Plan.
type Observed struct {
	Bundle *kontrol.Bundle
	// Objects are the content's objects in order of their waves. Content is bundle.Digest of them.
	Objects []bundle.Object
	Content string
	// Clusters are all clusters of the hub. Resources are the Bundle's.
	Clusters  []*kontrol.Cluster
	Resources []*kontrol.Resource
	// Failed has the error of each Resource that its cluster refused, by the Resource's name.
	Failed map[string]string
}

// Step is the result of Plan.
type Step struct {
	// Write are the Resources to create, or to update if they have a UID. Status must be stored before Write and
	// Delete are carried out.
	Write  []*kontrol.Resource
	Delete []*kontrol.Resource
	Status kontrol.BundleStatus
	// Again is the time until the next Plan; 0 if only an event requires one.
	Again time.Duration
}

// Plan returns the next step of a Bundle's rollout. It is pure except for the transition times of conditions. The step
// that begins a cluster writes none of its Resources: the status must be stored first, so that a crash cannot make
// more than maxUnavailable clusters unavailable.
func Plan(o Observed, now time.Time) Step {
	b := o.Bundle
	targets, gone := targetsOf(o)
	step := Step{Status: *b.Status.DeepCopy()}
	s := &step.Status
	s.ObservedGeneration, s.Content, s.Objects, s.Targets, s.Message = b.Generation, o.Content, int32(len(o.Objects)), nil,
		""
	if text := tooMany(len(targets), len(o.Objects)); text != "" {
		return invalid(step, text)
	}
	approved := b.Spec.Rollout.Approval != kontrol.ApprovalManual || b.Status.Approved == o.Content
	failed, unavailable := 0, 0
	for _, t := range targets {
		t.judge(o, now)
		if t.failure != "" {
			failed++
		}
		if t.unavailable(o.Content) {
			unavailable++
		}
	}
	stopped := failed > 0 && b.Spec.Rollout.OnFailure == kontrol.FailureStop
	most := maxUnavailable(b.Spec.Rollout.MaxUnavailable, len(targets))
	open := window.Of(b.Spec.Windows, now)
	if len(b.Spec.Windows) > 0 {
		step.Again = open.Wait(now)
	}
	changes := !b.Spec.Rollout.Paused && approved && open.Open
	if !b.Spec.Rollout.Paused {
		step.Delete = gone
	}
	for _, t := range targets {
		rec := kontrol.BundleTarget{Name: t.name, Content: t.was.Content, Since: t.was.Since, Wave: t.was.Wave}
		begin := !t.begun(o.Content) && changes && !stopped && t.reachable
		if begin && !t.unavailable(o.Content) {
			if begin = unavailable < most || len(t.write()) == 0 && len(t.extra) == 0; begin && !t.done() {
				unavailable++
			}
		}
		switch {
		case begin:
			rec.Content, rec.Wave, rec.Since = o.Content, t.waveNumber(), moment(now)
			if !t.done() {
				step.Again = soonest(step.Again, b.Spec.Rollout.HealthTimeout.Duration)
			}
		case t.begun(o.Content) && !t.done():
			if !open.Open { // the health timeout runs only in windows
				rec.Since = nil
				break
			}
			left := t.left(b, now)
			if was, is := t.was.Wave, t.waveNumber(); was == nil || is == nil || *was != *is || t.was.Since == nil {
				rec.Wave, rec.Since = is, moment(now)
				if t.was.Since == nil {
					left = b.Spec.Rollout.HealthTimeout.Duration
				}
			}
			if changes && !stopped {
				t.proceed(&step)
				if t.writes() { // the health timeout begins with the write, however long this process was down
					rec.Wave, rec.Since = t.waveNumber(), moment(now)
					left = b.Spec.Rollout.HealthTimeout.Duration
				}
			}
			if left > 0 {
				step.Again = soonest(step.Again, left)
			}
		case t.begun(o.Content):
			rec.Wave, rec.Since = nil, nil
		}
		t.report(&rec, o.Content, stopped)
		s.Targets = append(s.Targets, rec)
	}
	sum(s, b, targets, approved, stopped, open)
	return step
}

// proceed adds the writes of the cluster's current wave, or after the last wave the deletions.
func (t *target) proceed(step *Step) {
	if t.next < len(t.waves) {
		step.Write = append(step.Write, t.waves[t.next].write...)
		return
	}
	step.Delete = append(step.Delete, t.extra...)
}

func (t *target) writes() bool { return t.next < len(t.waves) && len(t.waves[t.next].write) > 0 }

func (t *target) write() (list []*kontrol.Resource) {
	for i := range t.waves {
		list = append(list, t.waves[i].write...)
	}
	return list
}

func (t *target) waveNumber() *int32 {
	if t.next == len(t.waves) {
		return nil
	}
	return new(int32(t.waves[t.next].number))
}

// left returns the rest of the current wave's health timeout.
func (t *target) left(b *kontrol.Bundle, now time.Time) time.Duration {
	if t.was.Since == nil || t.next == len(t.waves) {
		return 0
	}
	return t.was.Since.Add(b.Spec.Rollout.HealthTimeout.Duration).Sub(now)
}

// unavailable reports whether the cluster counts towards maxUnavailable: its rollout is not done, or it is unhealthy.
func (t *target) unavailable(content string) bool {
	return t.begun(content) && !t.done() || t.unhealthy()
}

// judge sets whether the cluster is reachable, and why its current wave has failed if it has.
func (t *target) judge(o Observed, now time.Time) {
	t.reachable, t.why = state.Reachable(t.cluster)
	if !t.begun(o.Content) || t.next == len(t.waves) {
		return
	}
	w := &t.waves[t.next]
	switch {
	case t.writes(): // what has failed may need what is not written yet
	case w.failed != "":
		t.failure = w.failed
	case t.was.Since != nil && t.was.Wave != nil && int(*t.was.Wave) == w.number &&
		t.left(o.Bundle, now) <= 0:
		t.failure = fmt.Sprintf("wave %d is not healthy after %s: %s", w.number, o.Bundle.Spec.Rollout.HealthTimeout.Duration,
			w.pending)
	}
}

// waitsForOthers is the message of a cluster whose turn has not come.
const waitsForOthers = "waiting for other clusters"

func (t *target) report(rec *kontrol.BundleTarget, content string, stopped bool) {
	switch {
	case t.failure != "":
		rec.Phase, rec.Message = kontrol.TargetFailed, t.failure
	case rec.Content != content:
		rec.Phase, rec.Message = kontrol.TargetWaiting, waitsForOthers
		if stopped {
			rec.Message = "another cluster has failed"
		}
		if !t.reachable {
			rec.Message = t.why
		}
	case t.done():
		rec.Phase = kontrol.TargetSynced
	default:
		rec.Phase = kontrol.TargetProgressing
		if t.next < len(t.waves) {
			if rec.Message = t.waves[t.next].pending; rec.Message == "" {
				rec.Message = fmt.Sprintf("wave %d is being written", t.waves[t.next].number)
			}
		} else {
			rec.Message = t.leaving
		}
	}
	rec.Message = cut(rec.Message)
}

func maxUnavailable(m *intstr.IntOrString, total int) int {
	if m == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(m, total, false)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

func tooMany(clusters, objects int) string {
	switch {
	case clusters > kontrol.MaxTargets:
		return fmt.Sprintf("the bundle selects %d clusters, at most %d are allowed: make several bundles", clusters,
			kontrol.MaxTargets)
	case clusters*objects > kontrol.MaxBundleResources:
		return fmt.Sprintf("%d objects on %d clusters are %d Resources, at most %d are allowed: make several bundles",
			objects, clusters, clusters*objects, kontrol.MaxBundleResources)
	}
	return ""
}

// moment rounds a time up to whole seconds, the precision of metav1.Time, so that it is never before the event.
func moment(now time.Time) *metav1.Time {
	return new(metav1.NewTime(now.Add(time.Second - time.Nanosecond).Truncate(time.Second)))
}

func soonest(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
