package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// roll takes one step of a rolling update: it scales up the new set, or else scales down the old ones.
func (p *plan) roll() {
	p.revisions(true)
	if !p.created && size(p.newest) != p.want() {
		to := p.want()
		if size(p.newest) < to {
			to = p.newSize()
		}
		if to != size(p.newest) {
			p.resize(p.newest, to)
			return
		}
	}
	if p.shrinkOld() {
		return
	}
	if p.complete(p.counts()) {
		p.cleanup()
	}
}

// shrinkOld scales old sets down as far as availability allows, unhealthy pods first. It reports whether it
// changed any.
func (p *plan) shrinkOld() bool {
	if total(p.old, size) == 0 {
		return false
	}
	least := p.want() - p.maxUnavailable()
	spare := total(p.all, size) - least - (size(p.newest) - available(p.newest))
	if spare <= 0 {
		return false
	}
	moved := false
	for _, rs := range p.old {
		if n := min(spare, size(rs)-available(rs)); n > 0 && size(rs) > 0 {
			p.resize(rs, size(rs)-n)
			spare -= n
			moved = true
		}
	}
	spare = total(p.all, available) - least
	for _, rs := range p.old {
		if n := min(spare, size(rs)); n > 0 {
			p.resize(rs, size(rs)-n)
			spare -= n
			moved = true
		}
	}
	return moved
}

// recreate stops all old pods before it starts the first new one.
func (p *plan) recreate(pods map[string][]*corev1.Pod) {
	p.revisions(false)
	moved := false
	for _, rs := range p.old {
		if size(rs) > 0 {
			p.resize(rs, 0)
			moved = true
		}
	}
	if moved || p.oldRunning(pods) {
		return
	}
	if p.newest == nil {
		p.revisions(true)
	} else {
		p.resizeIfNot(p.newest)
	}
	if p.complete(p.counts()) {
		p.cleanup()
	}
}

func (p *plan) oldRunning(pods map[string][]*corev1.Pod) bool {
	if total(p.old, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas }) > 0 {
		return true
	}
	for uid, of := range pods {
		if p.newest != nil && uid == string(p.newest.UID) {
			continue
		}
		if slices.ContainsFunc(of, func(pod *corev1.Pod) bool { return !podstate.Ended(pod) }) {
			return true
		}
	}
	return false
}

// cleanup deletes the oldest idle sets beyond the history limit.
func (p *plan) cleanup() {
	if p.d.Spec.RevisionHistoryLimit == nil {
		return
	}
	var idle []*appsv1.ReplicaSet
	for _, rs := range p.old {
		if rs.DeletionTimestamp == nil {
			idle = append(idle, rs)
		}
	}
	excess := len(idle) - int(*p.d.Spec.RevisionHistoryLimit)
	if excess <= 0 {
		return
	}
	slices.SortStableFunc(idle, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(cmp.Compare(revision(a), revision(b)), byCreation(a, b))
	})
	for _, rs := range idle[:excess] {
		if rs.Status.Replicas == 0 && size(rs) == 0 && rs.Generation <= rs.Status.ObservedGeneration {
			p.a.Delete = append(p.a.Delete, p.was[rs.Name])
		}
	}
}

func (p *plan) counts() appsv1.DeploymentStatus {
	s := appsv1.DeploymentStatus{
		ObservedGeneration: p.d.Generation,
		Replicas:           total(p.all, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas }),
		ReadyReplicas:      total(p.all, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.ReadyReplicas }),
		AvailableReplicas:  total(p.all, available),
		CollisionCount:     p.d.Status.CollisionCount,
	}
	var ending int32
	for _, rs := range p.all {
		if rs.Status.TerminatingReplicas != nil {
			ending += *rs.Status.TerminatingReplicas
		}
	}
	s.TerminatingReplicas = &ending
	s.UnavailableReplicas = max(total(p.all, size)-s.AvailableReplicas, 0)
	if p.newest != nil {
		s.UpdatedReplicas = p.newest.Status.Replicas
	}
	return s
}

func (p *plan) complete(s appsv1.DeploymentStatus) bool {
	return s.UpdatedReplicas == p.want() && s.Replicas == p.want() && s.AvailableReplicas == p.want() &&
		s.ObservedGeneration >= p.d.Generation
}

func (p *plan) hasDeadline() bool {
	return p.d.Spec.ProgressDeadlineSeconds != nil && *p.d.Spec.ProgressDeadlineSeconds != 1<<31-1
}

func condition(s appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// condition sets a condition. It keeps the old one if status and reason are the same.
func (p *plan) condition(t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	now := metav1.NewTime(p.now)
	next := appsv1.DeploymentCondition{
		Type:               t,
		Status:             status,
		Reason:             reason,
		Message:            message,
		LastUpdateTime:     now,
		LastTransitionTime: now,
	}
	if was := condition(p.status, t); was != nil {
		if was.Status == status && was.Reason == reason {
			return
		}
		if was.Status == status {
			next.LastTransitionTime = was.LastTransitionTime
		}
	}
	p.drop(t)
	p.status.Conditions = append(p.status.Conditions, next)
}

func (p *plan) drop(t appsv1.DeploymentConditionType) {
	p.status.Conditions = slices.DeleteFunc(p.status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == t
	})
}

func (p *plan) pausedConditions() {
	if !p.hasDeadline() {
		return
	}
	c := condition(p.status, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == "ProgressDeadlineExceeded" {
		return
	}
	paused := c != nil && c.Reason == "DeploymentPaused"
	switch {
	case p.d.Spec.Paused && !paused:
		p.condition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "DeploymentPaused", "Deployment is paused")
	case !p.d.Spec.Paused && paused:
		p.condition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed")
	}
}

func (p *plan) finish() {
	for _, rs := range p.all {
		was := p.was[rs.Name]
		if was == nil || rs == p.a.Create || slices.Contains(p.a.Delete, was) {
			continue
		}
		if !equality.Semantic.DeepEqual(was.Spec, rs.Spec) || !equality.Semantic.DeepEqual(was.Annotations, rs.Annotations) {
			p.a.Update = append(p.a.Update, rs)
		}
	}
	s := p.counts()
	if s.AvailableReplicas >= p.want()-p.maxUnavailable() {
		p.condition(appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable",
			"Deployment has minimum availability.")
	} else {
		p.condition(appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable",
			"Deployment does not have minimum availability.")
	}
	rollout := p.d.DeletionTimestamp == nil && !p.d.Spec.Paused && !p.isScalingObserved()
	if rollout {
		p.progress(s)
	}
	s.Conditions = p.status.Conditions
	p.a.Status = s
	if rollout {
		p.a.Again = p.deadlineIn(s)
	}
}

func (p *plan) isScalingObserved() bool {
	observed := &plan{d: p.d}
	for _, rs := range p.was {
		observed.all = append(observed.all, rs)
	}
	return observed.isScaling()
}

func (p *plan) progress(s appsv1.DeploymentStatus) {
	if !p.hasDeadline() {
		p.drop(appsv1.DeploymentProgressing)
	}
	what := fmt.Sprintf("Deployment %q", p.d.Name)
	if p.newest != nil {
		what = fmt.Sprintf("ReplicaSet %q", p.newest.Name)
	}
	c := condition(p.status, appsv1.DeploymentProgressing)
	done := s.Replicas == s.UpdatedReplicas && c != nil && c.Reason == "NewReplicaSetAvailable"
	if p.hasDeadline() && !done {
		was := p.d.Status
		switch {
		case p.complete(s):
			p.condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetAvailable",
				what+" has successfully progressed.")
		case s.UpdatedReplicas > was.UpdatedReplicas || s.Replicas-s.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
			s.ReadyReplicas > was.ReadyReplicas || s.AvailableReplicas > was.AvailableReplicas:
			now := metav1.NewTime(p.now)
			next := appsv1.DeploymentCondition{
				Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "ReplicaSetUpdated",
				Message: what + " is progressing.", LastUpdateTime: now, LastTransitionTime: now,
			}
			if c != nil && c.Status == corev1.ConditionTrue {
				next.LastTransitionTime = c.LastTransitionTime
			}
			p.drop(appsv1.DeploymentProgressing)
			p.status.Conditions = append(p.status.Conditions, next)
		case p.timedOut(c, s):
			p.condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "ProgressDeadlineExceeded",
				what+" has timed out progressing.")
		}
	}
	p.drop(appsv1.DeploymentReplicaFailure)
	failing := p.all
	if p.newest != nil {
		failing = append([]*appsv1.ReplicaSet{p.newest}, p.old...)
	}
	for _, rs := range failing {
		for _, f := range rs.Status.Conditions {
			if f.Type == appsv1.ReplicaSetReplicaFailure {
				p.status.Conditions = append(p.status.Conditions, appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: f.Status, Reason: f.Reason, Message: f.Message,
					LastTransitionTime: f.LastTransitionTime, LastUpdateTime: f.LastTransitionTime,
				})
				return
			}
		}
	}
}

func (p *plan) timedOut(c *appsv1.DeploymentCondition, s appsv1.DeploymentStatus) bool {
	if c == nil || c.Reason == "NewReplicaSetAvailable" {
		return false
	}
	return c.Reason == "ProgressDeadlineExceeded" || p.deadline(c).Before(p.now)
}

func (p *plan) deadline(c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*p.d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// deadlineIn is the time until the progress deadline, plus 1 s because stored times have no fractions.
func (p *plan) deadlineIn(s appsv1.DeploymentStatus) time.Duration {
	c := condition(s, appsv1.DeploymentProgressing)
	if !p.hasDeadline() || c == nil || p.complete(s) || c.Reason == "ProgressDeadlineExceeded" {
		return 0
	}
	return max(p.deadline(c).Sub(p.now), 0) + time.Second
}
