package pod

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func conditions(p *corev1.Pod, o Observed, s *corev1.PodStatus, d Decision, now time.Time) {
	set := func(kind corev1.PodConditionType, ok bool, reason, message string) {
		status := corev1.ConditionFalse
		if ok {
			status = corev1.ConditionTrue
		}
		SetCondition(s, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: p.Generation, LastTransitionTime: stamp(now)})
	}
	sandbox := o.Sandbox
	for _, c := range s.ContainerStatuses {
		sandbox = sandbox || c.State.Running != nil // a new agent has not looked at the sandbox yet
	}
	switch {
	case sandbox && !d.Stopped:
		set(corev1.PodReadyToStartContainers, true, "", "")
	case len(o.Containers) > 0:
		set(corev1.PodReadyToStartContainers, false, "PodSandboxNotReady", "pod sandbox is not ready")
	default:
		set(corev1.PodReadyToStartContainers, false, "PodSandboxNotReady", "no pod sandbox exists")
	}
	reason, message := initializing(p, s)
	set(corev1.PodInitialized, reason == "" || s.Phase == corev1.PodSucceeded, reason, message)
	reason, message = unready(p, s)
	set(corev1.ContainersReady, reason == "", reason, message)
	if reason == "" {
		reason, message = gated(p, s)
	}
	set(corev1.PodReady, reason == "", reason, message)
	set(corev1.PodScheduled, true, "", "")
	restartingCondition(p, s, d, now)
	resizeConditions(p, o, s, d, now)
}

// initializing returns why the pod is not initialized, or "". A pod once initialized remains so.
func initializing(p *corev1.Pod, s *corev1.PodStatus) (reason, message string) {
	if s.Phase == corev1.PodSucceeded {
		return "PodCompleted", ""
	}
	var left []string
	for i, c := range s.InitContainerStatuses {
		done := c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		if isSidecar(&p.Spec.InitContainers[i]) {
			done = c.Started != nil && *c.Started
		}
		if !done {
			left = append(left, c.Name)
		}
	}
	started := func(c corev1.ContainerStatus) bool { return c.State.Running != nil || c.State.Terminated != nil }
	switch {
	case slices.ContainsFunc(s.ContainerStatuses, started) || conditionTrue(s, corev1.PodInitialized):
		return "", ""
	case len(s.InitContainerStatuses) < len(p.Spec.InitContainers):
		return unknownStatuses, ""
	case len(left) > 0:
		return "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %s", left)
	}
	return "", ""
}

// unknownStatuses is the reason while the status has no containers, for example of a pod that the node rejected.
const unknownStatuses = "UnknownContainerStatuses"

// unready returns why the pod's containers are not ready, or "".
func unready(p *corev1.Pod, s *corev1.PodStatus) (reason, message string) {
	switch {
	case s.Phase == corev1.PodFailed:
		return "PodFailed", ""
	case s.Phase == corev1.PodSucceeded:
		return "PodCompleted", ""
	case len(s.ContainerStatuses) < len(p.Spec.Containers):
		return unknownStatuses, ""
	}
	var left []string
	for i, c := range s.InitContainerStatuses {
		if isSidecar(&p.Spec.InitContainers[i]) && !c.Ready {
			left = append(left, c.Name)
		}
	}
	for _, c := range s.ContainerStatuses {
		if !c.Ready {
			left = append(left, c.Name)
		}
	}
	if len(left) > 0 {
		return "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", left)
	}
	return "", ""
}

// gated returns which readiness gates keep a pod with ready containers from being ready, or "".
func gated(p *corev1.Pod, s *corev1.PodStatus) (reason, message string) {
	var shut []string
	for _, g := range p.Spec.ReadinessGates {
		switch c := conditionIn(s.Conditions, g.ConditionType); {
		case c == nil:
			shut = append(shut, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", g.ConditionType))
		case c.Status != corev1.ConditionTrue:
			shut = append(shut,
				fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", g.ConditionType, c.Status))
		}
	}
	if len(shut) == 0 {
		return "", ""
	}
	return "ReadinessGatesNotReady", strings.Join(shut, ", ")
}

func conditionTrue(s *corev1.PodStatus, kind corev1.PodConditionType) bool {
	c := conditionIn(s.Conditions, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// SetCondition replaces the condition of c's type. It keeps the transition time if the status is the same.
func SetCondition(s *corev1.PodStatus, c corev1.PodCondition) {
	for i := range s.Conditions {
		if s.Conditions[i].Type != c.Type {
			continue
		}
		if s.Conditions[i].Status == c.Status {
			c.LastTransitionTime = s.Conditions[i].LastTransitionTime
		}
		c.LastProbeTime = s.Conditions[i].LastProbeTime
		s.Conditions[i] = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

func resizeConditions(p *corev1.Pod, o Observed, s *corev1.PodStatus, d Decision, now time.Time) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	})
	if d.Stopping || hasEnded(s.Phase) {
		return
	}
	set := func(kind corev1.PodConditionType, reason, message string, generation int64) {
		c := corev1.PodCondition{
			Type:               kind,
			Status:             corev1.ConditionTrue,
			Reason:             reason,
			Message:            message,
			ObservedGeneration: generation,
			LastTransitionTime: stamp(now),
		}
		if was := conditionIn(p.Status.Conditions, kind); was != nil && was.Status == c.Status {
			c.LastTransitionTime, c.LastProbeTime = was.LastTransitionTime, was.LastProbeTime
		}
		s.Conditions = append(s.Conditions, c)
	}
	if resizing(p, o) {
		if f, failed := o.Failures[resizeTarget]; failed {
			set(corev1.PodResizeInProgress, corev1.PodReasonError, f.Message, o.Generation)
		} else {
			set(corev1.PodResizeInProgress, "", "", o.Generation)
		}
	}
	if !o.Unallocated {
		return
	}
	if f, known := o.Failures[allocateTarget]; known {
		set(corev1.PodResizePending, f.Reason, f.Message, p.Generation)
	} else if was := conditionIn(p.Status.Conditions, corev1.PodResizePending); was != nil { // still undecided
		s.Conditions = append(s.Conditions, *was)
	}
}

// undecided reports whether a resize is about to be granted or refused. A status would show it as complete until then.
func (o Observed) undecided() bool {
	_, refused := o.Failures[allocateTarget]
	return o.Unallocated && !refused && o.Busy[allocateTarget] == Allocate
}

func conditionIn(all []corev1.PodCondition, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range all {
		if all[i].Type == kind {
			return &all[i]
		}
	}
	return nil
}

// resizing reports whether a cgroup lacks the allocated resources. A stopped container gets them with its next start.
func resizing(p *corev1.Pod, o Observed) bool {
	if o.Resizing || o.Limits != o.Share.limits {
		return true
	}
	for c := range containersOf(p) {
		l := o.latest(c.Name)
		if l == nil {
			continue
		}
		if differs, restart := o.resizes(p, l, c); differs && (l.State != runtime.Exited || restart) {
			return true
		}
	}
	return false
}

func (w *worker) resizeEvents(p *corev1.Pod, s *corev1.PodStatus) {
	pending, progress := conditionIn(s.Conditions, corev1.PodResizePending), conditionIn(s.Conditions,
		corev1.PodResizeInProgress)
	before := conditionIn(p.Status.Conditions, corev1.PodResizePending)
	if pending != nil &&
		(before == nil || before.Reason != pending.Reason || before.ObservedGeneration != pending.ObservedGeneration) {
		w.mu.Lock()
		desired := w.api.pod
		w.mu.Unlock()
		w.m.event(p, "", corev1.EventTypeWarning, "Resize"+pending.Reason,
			resizeMessage("Pod resize "+pending.Reason, desired, pending.Message))
	}
	before = conditionIn(p.Status.Conditions, corev1.PodResizeInProgress)
	switch {
	case progress != nil && progress.Reason == corev1.PodReasonError &&
		(before == nil || before.Message != progress.Message):
		w.m.event(p, "", corev1.EventTypeWarning, resizeFailed, resizeMessage("Pod resize error", p, progress.Message))
	case progress == nil && before != nil && !hasEnded(s.Phase) && p.DeletionTimestamp == nil:
		w.m.event(p, "", corev1.EventTypeNormal, "ResizeCompleted", resizeMessage("Pod resize completed", p, ""))
	}
}
