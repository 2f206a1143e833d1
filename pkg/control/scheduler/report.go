package scheduler

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// report is the status to write for a pod without a node.
type report struct {
	pod                *corev1.Pod // the pod at the time of the attempt
	message, nominated string
}

// report writes the PodScheduled condition of the latest attempt. Writes of several attempts may run concurrently
// and in any order: they are serialized, the first one writes the latest report, and none follows the binding. A
// failed write is left to the next attempt.
func (s *Scheduler) report(ctx context.Context, p *pending) {
	p.writing.Lock()
	defer p.writing.Unlock()
	s.mu.Lock()
	r := p.report
	s.mu.Unlock()
	if r == nil {
		return
	}
	var err error
	if c := r.condition(p.wrote); c != nil {
		wrote := p.wrote
		p.wrote = true
		err = s.writeReport(ctx, r, c, wrote)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		if ctx.Err() == nil {
			s.log.Warn("could not write pod status", "pod", r.pod.Namespace+"/"+r.pod.Name, "error", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.report == r {
		p.report = nil
	}
}

// writeReport writes a pod's condition by an update, which is cheaper, or by a patch after a conflict.
func (s *Scheduler) writeReport(ctx context.Context, r *report, c *corev1.PodCondition, wrote bool) error {
	if !wrote {
		next := r.pod.DeepCopy()
		next.Status.NominatedNodeName = r.nominated
		next.Status.Conditions = append(slices.DeleteFunc(next.Status.Conditions, func(have corev1.PodCondition) bool {
			return have.Type == c.Type
		}), *c)
		if err := s.client.Status().Update(ctx, next); !apierrors.IsConflict(err) {
			return err
		}
	}
	return s.client.Status().Patch(ctx, reference(r.pod),
		ctrlclient.RawPatch(types.StrategicMergePatchType, r.patch(c, wrote)))
}

// condition returns the condition to write, or nil if the pod already has it. After an own write (wrote) the cached
// pod may be stale, so the result is never nil.
func (r *report) condition(wrote bool) *corev1.PodCondition {
	at := metav1.NewTime(now())
	for i := range r.pod.Status.Conditions {
		c := &r.pod.Status.Conditions[i]
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse {
			continue
		}
		if !wrote && c.Reason == corev1.PodReasonUnschedulable && c.Message == r.message &&
			r.pod.Status.NominatedNodeName == r.nominated {
			return nil
		}
		at = c.LastTransitionTime
	}
	return &corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: r.message,
		LastTransitionTime: at, ObservedGeneration: r.pod.Generation,
	}
}

func (r *report) patch(c *corev1.PodCondition, wrote bool) []byte {
	status := map[string]any{"conditions": []*corev1.PodCondition{c}}
	if wrote || r.nominated != r.pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = r.nominated
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.pod.UID}, "status": status})
	if err != nil {
		panic(err) // text, numbers and times always encode
	}
	return patch
}
