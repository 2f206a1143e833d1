package task

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// defaultStartTimeout applies to tasks without startTimeoutSeconds.
const defaultStartTimeout = 20 * time.Second

func fail(a *tasks.TaskAttempt, reason, format string, args ...any) {
	a.Phase, a.Reason, a.Message = tasks.TaskFailed, reason, fmt.Sprintf(format, args...)
}

// one updates an attempt from its pod. retry is false if it failed in a way that another attempt would repeat.
func (p *plan) one(a *tasks.TaskAttempt) (retry bool) {
	if a.PodUID == "" {
		a.Message = ""
		if why, rejected := p.Rejected[tasks.PodName(p.Task, a)]; rejected {
			fail(a, tasks.ReasonRejected, "%s", why)
		}
		return true
	}
	at := slices.IndexFunc(p.Pods, func(pod *corev1.Pod) bool { return pod.UID == a.PodUID })
	if at < 0 {
		fail(a, tasks.ReasonPodDeleted, "its pod %s was deleted", a.Pod)
		return true
	}
	pod := p.Pods[at]
	if pod.Spec.NodeName == "" {
		return p.waits(a, pod)
	}
	a.Node = pod.Spec.NodeName
	if a.Phase == tasks.TaskPending {
		a.Phase, a.Message = tasks.TaskScheduled, ""
		if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
			a.ScheduledAt = c.LastTransitionTime.DeepCopy()
		} else {
			at := metav1.NewTime(p.now)
			a.ScheduledAt = &at
		}
	}
	p.container(a, pod)
	if !a.Phase.Ended() && p.lost(a.Node) {
		if beat, there := p.Heard[a.Node]; there {
			fail(a, tasks.ReasonNodeLost, "node %s has sent no heartbeat for %s", a.Node, beat.Patience)
		} else {
			fail(a, tasks.ReasonNodeLost, "node %s was deleted", a.Node)
		}
	}
	if limit := p.spec.RunTimeoutSeconds; a.Phase == tasks.TaskRunning && limit != nil && a.StartedAt != nil {
		start := a.StartedAt.Time
		if a.ScheduledAt != nil && start.Before(a.ScheduledAt.Time) { // the node's clock may be slow
			start = a.ScheduledAt.Time
		}
		if d := time.Duration(*limit) * time.Second; p.exceeds(start, d) {
			fail(a, tasks.ReasonRunTimeout, "it ran for longer than %s", d)
		}
	}
	return true
}

func (p *plan) waits(a *tasks.TaskAttempt, pod *corev1.Pod) (retry bool) {
	if pod.DeletionTimestamp != nil {
		fail(a, tasks.ReasonPodDeleted, "its pod %s was deleted before a node was chosen", pod.Name)
		return true
	}
	if i := index(a); i < len(p.targets) && p.Deleted[p.targets[i]] {
		fail(a, tasks.ReasonNodeLost, "node %s was deleted", p.targets[i])
		return false
	}
	a.Message = ""
	if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		a.Message = c.Message
	}
	limit := p.spec.ScheduleTimeoutSeconds
	if limit == nil {
		return true
	}
	d := time.Duration(*limit) * time.Second
	if !p.exceeds(pod.CreationTimestamp.Time, d) {
		return true
	}
	a.Message = cmp.Or(a.Message, "the scheduler has not considered the pod yet")
	fail(a, tasks.ReasonNoNode, "no feasible node within %s: %s", d, a.Message)
	return false
}

func (p *plan) container(a *tasks.TaskAttempt, pod *corev1.Pod) {
	c := mainContainer(pod)
	if c.ContainerID != "" {
		a.ContainerID = c.ContainerID
	}
	deleted := pod.DeletionTimestamp != nil
	switch {
	case c.State.Terminated != nil:
		terminated(a, c.State.Terminated, deleted)
		a.Usage = usage(pod)
		if pod.Status.Reason == "Evicted" || pod.Status.Reason == "DeadlineExceeded" {
			fail(a, pod.Status.Reason, "%s", pod.Status.Message)
		}
		if a.FinishedAt == nil {
			a.FinishedAt = new(metav1.NewTime(p.now))
		}
	case pod.Status.Phase == corev1.PodFailed:
		reason := cmp.Or(pod.Status.Reason, tasks.ReasonError)
		message := cmp.Or(pod.Status.Message, failedInit(pod), "the node refused the pod")
		fail(a, reason, "%s", message)
		a.Usage = usage(pod)
	case deleted && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0:
		// The agent or a forced deletion has removed the pod, so no further status follows.
		fail(a, tasks.ReasonPodDeleted, "its pod %s was deleted", pod.Name)
	case c.State.Running != nil:
		a.Phase, a.Message = tasks.TaskRunning, ""
		a.StartedAt = c.State.Running.StartedAt.DeepCopy()
	case a.Phase == tasks.TaskScheduled && c.State.Waiting != nil:
		p.cannotStart(a, waitingFor(pod, c.State.Waiting))
	}
}

// mainContainer returns the status of the task's own container.
func mainContainer(pod *corev1.Pod) corev1.ContainerStatus {
	if len(pod.Status.ContainerStatuses) == 0 {
		return corev1.ContainerStatus{}
	}
	return pod.Status.ContainerStatuses[0]
}

// waitingFor returns why the pod's containers wait: an init container that cannot be created, or the main container.
func waitingFor(pod *corev1.Pod, main *corev1.ContainerStateWaiting) *corev1.ContainerStateWaiting {
	for _, c := range pod.Status.InitContainerStatuses {
		switch w := c.State.Waiting; {
		case c.State.Running != nil && (c.Started == nil || !*c.Started): // it takes the time that it needs
			return &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			return &corev1.ContainerStateWaiting{
				Reason: w.Reason, Message: strings.TrimSuffix("init container "+c.Name+": "+w.Message, ": "),
			}
		}
	}
	return main
}

// failedInit returns why the pod failed if an init container did, or "".
func failedInit(pod *corev1.Pod) string {
	for _, c := range pod.Status.InitContainerStatuses {
		if end := c.State.Terminated; end != nil && end.ExitCode != 0 {
			return fmt.Sprintf("init container %s failed: exit code %d", c.Name, end.ExitCode)
		}
	}
	return ""
}

// usage returns what the agent has reported, or nil.
func usage(pod *corev1.Pod) *tasks.TaskUsage {
	c := podstate.Condition(pod, tasks.UsageCondition)
	if c == nil {
		return nil
	}
	var u tasks.TaskUsage
	if json.Unmarshal([]byte(c.Message), &u) != nil {
		return nil
	}
	return &u
}

// cannotStart records why a container waits. A reason that does not go away before the start timeout ends the attempt.
func (p *plan) cannotStart(a *tasks.TaskAttempt, w *corev1.ContainerStateWaiting) {
	a.Message = ""
	switch w.Reason {
	case "", "ContainerCreating", "PodInitializing":
		if w.Message == "" {
			return
		}
		w = &corev1.ContainerStateWaiting{Reason: tasks.ReasonNotPrepared, Message: w.Message}
	}
	a.Message = w.Reason
	if w.Message != "" {
		a.Message += ": " + w.Message
	}
	limit := defaultStartTimeout
	if s := p.spec.StartTimeoutSeconds; s != nil {
		limit = time.Duration(*s) * time.Second
	}
	if w.Reason == "InvalidImageName" || w.Reason == "ErrImageNeverPull" ||
		a.ScheduledAt != nil && p.exceeds(a.ScheduledAt.Time, limit) {
		reason, message := w.Reason, a.Message
		if reason == "ImagePullBackOff" || reason == "ErrImagePull" {
			reason, message = "ErrImagePull", strings.TrimSuffix("the image cannot be pulled: "+w.Message, ": ")
		}
		fail(a, reason, "%s", message)
	}
}

func terminated(a *tasks.TaskAttempt, end *corev1.ContainerStateTerminated, deleted bool) {
	code := end.ExitCode
	a.ExitCode = &code
	if end.ContainerID != "" {
		a.ContainerID = end.ContainerID
	}
	if !end.StartedAt.IsZero() {
		a.StartedAt = end.StartedAt.DeepCopy()
	}
	if !end.FinishedAt.IsZero() {
		a.FinishedAt = end.FinishedAt.DeepCopy()
	}
	switch {
	case code == 0:
		a.Phase, a.Reason, a.Message = tasks.TaskCompleted, "", ""
	case deleted:
		fail(a, tasks.ReasonPodDeleted, "its pod was deleted while it ran: exit code %d", code)
	case end.Message != "":
		fail(a, end.Reason, "%s", end.Message)
	case end.Reason != "" && end.Reason != tasks.ReasonError:
		fail(a, end.Reason, "%s: exit code %d", end.Reason, code)
	default:
		fail(a, tasks.ReasonError, "exit code %d", code)
	}
}
