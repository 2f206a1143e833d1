package view

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// maxReason bounds the recorded part of a worker's error, in bytes.
const maxReason = 1024

// ErrStale is the error for a report that contradicts the pod's state: of another container, or after the pod has
// ended.
type ErrStale string

func (e ErrStale) Error() string { return string(e) }

var exited = regexp.MustCompile(`^container exited with code (-?[0-9]{1,10})$`)

// ReportTask applies a worker's report on a task to the status of its pod, which the caller owns. It returns whether
// the status changed.
func ReportTask(p *corev1.Pod, in *wire.TaskStatus, now time.Time) (bool, error) {
	state := wire.Container{Name: p.Spec.Containers[0].Name, ContainerID: in.ContainerID, Error: in.Error}
	var phase corev1.PodPhase
	switch in.Status {
	case wire.TaskRunning:
		phase, state.Status = corev1.PodRunning, wire.ContainerRunning
	case wire.TaskCompleted:
		phase, state.Status = corev1.PodSucceeded, wire.ContainerTerminated
	case wire.TaskFailed:
		phase, state.Status = corev1.PodFailed, wire.ContainerTerminated
	default:
		return false, fmt.Errorf("status %q is not running, completed or failed", in.Status)
	}
	return report(p, phase, []wire.Container{state}, "", "", now)
}

// ReportPod applies a worker's report on a pod to its status, which the caller owns.
func ReportPod(p *corev1.Pod, in *wire.PodStatus, now time.Time) (bool, error) {
	var phase corev1.PodPhase
	switch in.Status {
	case wire.PodScheduled: // Podling's worker sends it in any state, with a container that became unhealthy
		phase = p.Status.Phase
	case wire.PodRunning:
		phase = corev1.PodRunning
	case wire.PodSucceeded:
		phase = corev1.PodSucceeded
	case wire.PodFailed:
		phase = corev1.PodFailed
	default:
		return false, fmt.Errorf("status %q is not scheduled, running, succeeded or failed", in.Status)
	}
	states := slices.Clone(in.Containers)
	for i := range p.Spec.Containers {
		// A worker need not list the containers. They then have the pod's state.
		name := p.Spec.Containers[i].Name
		if !slices.ContainsFunc(states, func(c wire.Container) bool { return c.Name == name }) &&
			in.Status != wire.PodScheduled {
			status := wire.ContainerTerminated
			if phase == corev1.PodRunning {
				status = wire.ContainerRunning
			}
			states = append(states, wire.Container{Name: name, Status: status})
		}
	}
	return report(p, phase, states, in.Message, in.Reason, now)
}

func report(p *corev1.Pod, phase corev1.PodPhase, states []wire.Container, message, reason string,
	now time.Time) (bool, error) {
	before := p.Status.DeepCopy()
	s := &p.Status
	if ended(s.Phase) && phase != s.Phase {
		return false, ErrStale("it has ended already")
	}
	for i := range states {
		if err := container(p, phase, &states[i], now); err != nil {
			return false, err
		}
	}
	if ended(before.Phase) {
		p.Status = *before // a repeated report changes nothing
		return false, nil
	}
	s.Phase, s.Message, s.Reason = phase, clip(message), clip(reason)
	if s.StartTime == nil {
		s.StartTime = new(metav1.NewTime(now))
	}
	return true, nil
}

func ended(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

func clip(s string) string { return s[:min(len(s), maxReason)] }

func container(p *corev1.Pod, phase corev1.PodPhase, in *wire.Container, now time.Time) error {
	at := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == in.Name })
	if at < 0 {
		return fmt.Errorf("it has no container %q", clip(in.Name))
	}
	have := slices.IndexFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == in.Name })
	if have < 0 {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name:  in.Name,
			Image: p.Spec.Containers[at].Image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}},
		})
		have = len(p.Status.ContainerStatuses) - 1
	}
	s := &p.Status.ContainerStatuses[have]
	if in.ContainerID != "" {
		id := WorkerRuntime + "://" + clip(in.ContainerID)
		if s.ContainerID != "" && s.ContainerID != id {
			return ErrStale("the pod runs another container")
		}
		s.ContainerID = id
	}
	started := metav1.NewTime(now)
	if s.State.Running != nil {
		started = s.State.Running.StartedAt
	}
	switch {
	case s.State.Terminated != nil:
		if in.Status != wire.ContainerTerminated {
			return ErrStale("container " + in.Name + " has ended already")
		}
	case in.Status == wire.ContainerRunning:
		s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
		running := true
		s.Started, s.Ready = &running, in.HealthStatus != wire.HealthUnhealthy
	case in.Status == wire.ContainerTerminated:
		s.State = corev1.ContainerState{Terminated: termination(in, phase, started, s.ContainerID, now)}
		running := false
		s.Started, s.Ready = &running, false
	case in.Status == wire.ContainerWaiting || in.Status == "":
	default:
		return fmt.Errorf("container status %q is not waiting, running or terminated", clip(in.Status))
	}
	return nil
}

func termination(in *wire.Container, phase corev1.PodPhase, started metav1.Time, id string,
	now time.Time) *corev1.ContainerStateTerminated {
	end := &corev1.ContainerStateTerminated{
		StartedAt:   started,
		FinishedAt:  metav1.NewTime(now),
		Message:     clip(in.Error),
		Reason:      "Completed",
		ContainerID: id,
	}
	if phase == corev1.PodFailed {
		end.Reason, end.ExitCode = "Error", 1
	}
	if m := exited.FindStringSubmatch(in.Error); m != nil {
		if n, err := strconv.ParseInt(m[1], 10, 32); err == nil {
			end.ExitCode = int32(n)
		}
	}
	if in.ExitCode != nil {
		if n, err := number("exitCode", *in.ExitCode); err == nil {
			end.ExitCode = n
		}
	}
	if end.ExitCode != 0 {
		end.Reason = "Error"
	} else if phase == corev1.PodFailed && len(in.Error) > 0 {
		end.ExitCode = 1 // for example, the image could not be pulled
	}
	return end
}
