package pod

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

func conditions(p *corev1.Pod, o Observed, s *corev1.PodStatus, d Decision, now time.Time) {
	var uninit, unready []string
	for i, c := range s.InitContainerStatuses {
		if isSidecar(&p.Spec.InitContainers[i]) {
			if c.Started == nil || !*c.Started {
				uninit = append(uninit, c.Name)
			}
			if !c.Ready {
				unready = append(unready, c.Name)
			}
		} else if t := c.State.Terminated; t == nil || t.ExitCode != 0 {
			uninit = append(uninit, c.Name)
		}
	}
	if hasStarted(p, o) {
		uninit = nil
	}
	for _, c := range s.ContainerStatuses {
		if !c.Ready {
			unready = append(unready, c.Name)
		}
	}
	ended := s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed
	set := func(kind corev1.PodConditionType, ok bool, reason, message string) {
		status := corev1.ConditionTrue
		if !ok {
			status = corev1.ConditionFalse
		} else {
			reason, message = "", ""
		}
		SetCondition(s, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: p.Generation, LastTransitionTime: stamp(now)})
	}
	notReady, why := "ContainersNotReady", fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	ready := len(unready) == 0 && len(s.ContainerStatuses) == len(p.Spec.Containers) && len(uninit) == 0
	switch {
	case s.Phase == corev1.PodFailed:
		notReady, why, ready = "PodFailed", "", false
	case s.Phase == corev1.PodSucceeded:
		notReady, why, ready = "PodCompleted", "", false
	}
	sandbox := o.Sandbox
	for _, c := range s.ContainerStatuses {
		sandbox = sandbox || c.State.Running != nil // also while the agent that started has not looked yet
	}
	set(corev1.PodReadyToStartContainers, sandbox && !d.Stopped, "", "")
	set(corev1.PodInitialized, len(uninit) == 0 && s.Phase != corev1.PodFailed || s.Phase == corev1.PodSucceeded || hasStarted(p, o),
		"ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(uninit, " ")))
	if s.Phase == corev1.PodSucceeded {
		SetCondition(s, corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, Reason: "PodCompleted",
			ObservedGeneration: p.Generation, LastTransitionTime: stamp(now)})
	}
	set(corev1.ContainersReady, ready, notReady, why)
	if ready && !ended {
		var open []string
		for _, g := range p.Spec.ReadinessGates {
			if !conditionTrue(s, g.ConditionType) {
				open = append(open, string(g.ConditionType))
			}
		}
		if len(open) > 0 {
			ready, notReady = false, "ReadinessGatesNotReady"
			why = fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", strings.Join(open, ","), corev1.ConditionFalse)
		}
	}
	set(corev1.PodReady, ready, notReady, why)
	set(corev1.PodScheduled, true, "", "")
	restartingCondition(p, s, d, now)
	resizeConditions(p, o, s, now)
}

func conditionTrue(s *corev1.PodStatus, kind corev1.PodConditionType) bool {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// SetCondition replaces the condition of c's type, keeping its transition time if the status is the same.
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

// resizeConditions sets the conditions of a resize that is in progress or pending.
func resizeConditions(p *corev1.Pod, o Observed, s *corev1.PodStatus, now time.Time) {
	progress, failed := resizing(p, o)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && !pendingResize(o, c.Reason) || c.Type == corev1.PodResizeInProgress && !progress
	})
	set := func(kind corev1.PodConditionType, reason, message string) {
		SetCondition(s, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason,
			Message: message, ObservedGeneration: p.Generation, LastTransitionTime: stamp(now)})
	}
	if progress {
		reason := ""
		if failed != "" {
			reason = corev1.PodReasonError
		}
		set(corev1.PodResizeInProgress, reason, failed)
	}
	for _, name := range sortedKeys(o.Failures) {
		if f := o.Failures[name]; f.Reason == corev1.PodReasonInfeasible || f.Reason == corev1.PodReasonDeferred {
			set(corev1.PodResizePending, f.Reason, f.Message)
		}
	}
}

// resizing reports whether an accepted resize has not been applied to all containers yet, and the last error of applying it.
func resizing(p *corev1.Pod, o Observed) (progress bool, failed string) {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			l := o.latest(c.Name)
			if l == nil || l.State == runtime.Exited && !o.restartForResize(l, c) || !o.resized(l, c) {
				continue
			}
			switch f := o.Failures[c.Name]; f.Reason {
			case corev1.PodReasonInfeasible, corev1.PodReasonDeferred:
			case resizeFailed:
				progress, failed = true, f.Message
			default:
				progress = true
			}
		}
	}
	return progress, failed
}

func pendingResize(o Observed, reason string) bool {
	for _, f := range o.Failures {
		if f.Reason == reason {
			return true
		}
	}
	return false
}
