package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

func reference(p *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
}

// event records an event about a pod as the pod's profile.
func (s *Scheduler) event(p *corev1.Pod, kind, reason, format string, args ...any) {
	s.events.EventBy(p.Spec.SchedulerName, p, kind, reason, format, args...)
}

func (s *Scheduler) bind(ctx context.Context, p *pending, node string) error {
	pod := p.info.pod
	if err := s.client.SubResource("binding").Create(ctx, reference(pod), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}); err != nil {
		return err
	}
	s.record(pod, now(), corev1.EventTypeNormal, "Scheduled",
		fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.bound(p)
	p.reserved = nil
	s.state.volumes.release(pod.UID) // the cache shows the bound claims by now
	s.state.devices.release(pod.UID)
	if s.queue.pods[pod.UID] == p {
		s.queue.remove(p)
	}
	return nil
}

// refused unreserves a pod whose binding failed, and retries it unless it is gone.
func (s *Scheduler) refused(p *pending, node string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, n := p.info.pod, p.reserved
	s.release(p)
	if n != nil {
		defer s.help(n)
	}
	if s.queue.pods[pod.UID] != p {
		return
	}
	if s.state.pods[pod.UID] != nil || errors.Is(err, errGone) {
		s.queue.remove(p) // bound after all, or deleted: the informer has reported it or will
		return
	}
	if errors.Is(err, errClaimsWait) { // the next attempt reports what it waits for
		s.metrics.unschedulable.count(p)
		s.backOff(p)
		s.state.nominate(p.info, n) // keep its capacity while its volumes are provisioned
		p.expects = true
		return
	}
	s.metrics.failed.count(p)
	s.log.Warn("could not bind pod, retrying", "pod", pod.Namespace+"/"+pod.Name, "node", node, "error", err)
	s.backOff(p)
	s.events.Event(pod, corev1.EventTypeWarning, "FailedScheduling", "could not bind to node %s, retrying: %s", node, err)
}

// evict deletes the victims of a preemption and records an event for each.
func (s *Scheduler) evict(ctx context.Context, by *corev1.Pod, victims []*corev1.Pod) {
	if len(victims) > 0 {
		s.metrics.preemptions.Inc()
		s.metrics.victims.Observe(float64(len(victims)))
	}
	for _, v := range victims {
		if v.DeletionTimestamp != nil {
			continue
		}
		message := by.Spec.SchedulerName + ": preempting to accommodate a higher priority pod"
		patch, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
			"type": corev1.DisruptionTarget, "status": corev1.ConditionTrue, "reason": corev1.PodReasonPreemptionByScheduler,
			"message": message, "lastTransitionTime": metav1.NewTime(now()), "observedGeneration": v.Generation,
		}}}})
		if err := s.client.Status().
			Patch(ctx, reference(v), ctrlclient.RawPatch(types.StrategicMergePatchType, patch)); apierrors.IsNotFound(err) {
			continue
		}
		if err := s.client.Delete(ctx, reference(v), ctrlclient.Preconditions{UID: &v.UID}); err != nil {
			if ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				s.log.Warn("could not preempt pod", "pod", v.Namespace+"/"+v.Name, "error", err)
			}
			continue
		}
		s.events.EventBy(by.Spec.SchedulerName, v, corev1.EventTypeNormal, "Preempted", "Preempted by pod %s on node %s%s",
			by.UID, v.Spec.NodeName, neighbour(by, v))
	}
}

// neighbour returns ": pod NAME" for a preemptor in the victim's namespace. As upstream, events name no pods of other
// namespaces (kubernetes/kubernetes#114882).
func neighbour(by, victim *corev1.Pod) string {
	if by.Namespace != victim.Namespace {
		return ""
	}
	return ": pod " + by.Name
}
