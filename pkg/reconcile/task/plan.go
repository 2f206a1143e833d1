package task

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine/podstate"
)

// Observed is what there is.
type Observed struct {
	Task *tasks.Task
	// Pod is the task's pod, or nil.
	Pod *corev1.Pod
	// NodeLost is set if the pod's node is gone or no longer sends status.
	NodeLost bool
}

// Actions is what to do, in this order.
type Actions struct {
	// Create the task's pod, Stop it.
	Create, Stop bool
	Status       tasks.TaskStatus
	// Again is the time until the wait for a node times out; 0: none.
	Again time.Duration
}

// Plan derives the task's status from its pod. It does not modify o.
func Plan(o Observed, now time.Time) Actions {
	t := o.Task
	a := Actions{Status: *t.Status.DeepCopy()}
	s := &a.Status
	if t.Status.Phase.Ended() || t.DeletionTimestamp != nil {
		return a
	}
	if s.Phase == "" {
		s.Phase = tasks.TaskPending
	}
	if s.CreatedAt == nil {
		s.CreatedAt = t.CreationTimestamp.DeepCopy()
	}
	fail := func(format string, args ...any) {
		s.Phase, s.Error = tasks.TaskFailed, fmt.Sprintf(format, args...)
		at := metav1.NewTime(now)
		s.FinishedAt = &at
	}
	if o.Pod == nil {
		if s.PodName == "" {
			a.Create = true
			a.Again = waitFor(t, now)
			return a
		}
		switch s.Phase {
		case tasks.TaskPending:
			fail("its pod %s was deleted before a node took it", s.PodName)
		case tasks.TaskScheduled:
			fail("its pod %s was deleted before it started, or node %s went offline", s.PodName, s.Node)
		default:
			fail("its pod %s was deleted while it ran, or node %s lost its heartbeat", s.PodName, s.Node)
		}
		return a
	}
	p := o.Pod
	s.PodName = p.Name
	if p.Spec.NodeName == "" {
		reason := ""
		if c := podstate.Condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
			reason = c.Message
		}
		if left := waitFor(t, now); t.Spec.ScheduleTimeoutSeconds != nil && left <= 0 {
			fail("no available node within %d s: %s", *t.Spec.ScheduleTimeoutSeconds, reason)
			a.Stop = true
		} else {
			s.Error = reason
			a.Again = left
		}
		return a
	}
	s.Node = p.Spec.NodeName
	if s.Phase == tasks.TaskPending {
		s.Phase, s.Error = tasks.TaskScheduled, ""
	}
	follow(s, p, fail, now)
	if !s.Phase.Ended() && o.NodeLost {
		if s.Phase == tasks.TaskRunning {
			fail("node %s lost its heartbeat", s.Node)
		} else {
			fail("node %s went offline", s.Node)
		}
		a.Stop = true
	}
	return a
}

// follow copies the state of the pod's container.
func follow(s *tasks.TaskStatus, p *corev1.Pod, fail func(string, ...any), now time.Time) {
	var c corev1.ContainerStatus
	if len(p.Status.ContainerStatuses) > 0 {
		c = p.Status.ContainerStatuses[0]
	}
	if c.ContainerID != "" {
		s.ContainerID = c.ContainerID
	}
	switch {
	case c.State.Terminated != nil:
		end := c.State.Terminated
		code := end.ExitCode
		s.ExitCode = &code
		if end.ContainerID != "" {
			s.ContainerID = end.ContainerID
		}
		if !end.StartedAt.IsZero() {
			s.StartedAt = end.StartedAt.DeepCopy()
		}
		switch {
		case code == 0:
			s.Phase, s.Error = tasks.TaskCompleted, ""
		case end.Message != "":
			fail("%s: %s", end.Reason, end.Message)
		case end.Reason != "" && end.Reason != "Error":
			fail("%s: exit code %d", end.Reason, code)
		default:
			fail("exit code %d", code)
		}
		at := end.FinishedAt
		if at.IsZero() {
			at = metav1.NewTime(now)
		}
		s.FinishedAt = &at
	case p.Status.Phase == corev1.PodFailed:
		reason := p.Status.Reason
		if p.Status.Message != "" {
			reason += ": " + p.Status.Message
		}
		fail("%s", reason)
	case c.State.Running != nil:
		s.Phase, s.Error = tasks.TaskRunning, ""
		s.StartedAt = c.State.Running.StartedAt.DeepCopy()
	case s.Phase == tasks.TaskScheduled && c.State.Waiting != nil && c.State.Waiting.Message != "":
		s.Error = c.State.Waiting.Reason + ": " + c.State.Waiting.Message
	}
}

// waitFor is how long the task still waits for a node; 0 if it waits forever.
func waitFor(t *tasks.Task, now time.Time) time.Duration {
	if t.Spec.ScheduleTimeoutSeconds == nil {
		return 0
	}
	return t.CreationTimestamp.Add(time.Duration(*t.Spec.ScheduleTimeoutSeconds) * time.Second).Sub(now)
}

// attempt is the only attempt of a task.
var attempt = &tasks.TaskAttempt{Number: 1}
