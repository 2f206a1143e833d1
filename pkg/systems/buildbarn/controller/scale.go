package controller

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

// maxCount is the largest number that is accepted from a scheduler.
const maxCount = 1 << 30

// replicas returns the number of pods to request. For workers that follow a queue it sets when to look again.
func (p *plan) replicas() int32 {
	w, ok := p.part.(*buildbarn.BuildbarnWorker)
	if !ok || w.Spec.Scale == nil {
		p.Status.Queue = nil
		p.forget(buildbarn.ConditionScaling)
		return *p.part.Pods().Replicas
	}
	r := w.Spec.Scale
	p.Again = time.Duration(r.IntervalSeconds) * time.Second
	s := p.Status.Queue
	if s == nil {
		s = &buildbarn.QueueStatus{DesiredReplicas: r.Min}
		// The object may be new, or its status lost: keep the present replicas until the queue is known.
		if d := p.o.Deployment; d != nil && d.Spec.Replicas != nil {
			s.DesiredReplicas = *d.Spec.Replicas
		}
		p.Status.Queue = s
	}
	s.DesiredReplicas = min(max(s.DesiredReplicas, r.Min), r.Max)
	if p.o.Queue == nil {
		p.condition(buildbarn.ConditionScaling, metav1.ConditionFalse, "QueueUnknown", p.o.QueueError)
		return s.DesiredReplicas
	}
	p.condition(buildbarn.ConditionScaling, metav1.ConditionTrue, "FollowsQueue", "")
	q := p.o.Queue
	s.Queued, s.Executing, s.Workers = q.Queued, q.Executing, q.Workers
	work := int64(min(q.Queued, maxCount)) + int64(min(q.Executing, maxCount))
	want := int32(min((work+int64(r.Concurrency)-1)/int64(r.Concurrency), int64(r.Max)))
	want = max(want, r.Min)
	if want >= s.DesiredReplicas {
		s.DesiredReplicas, s.LowSince = want, nil
		return want
	}
	if s.LowSince == nil {
		s.LowSince = new(p.now)
	}
	if p.now.Sub(s.LowSince.Time) >= time.Duration(r.IdleSeconds)*time.Second {
		s.DesiredReplicas, s.LowSince = want, nil
	}
	return s.DesiredReplicas
}
