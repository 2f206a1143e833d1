package pod

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Facts are the inputs of Status besides Observed.
type Facts struct {
	PodIP   string
	HostIP  string
	Start   time.Time
	Message func(Instance) string // the termination message of an ended instance
	// Owned means that another object reports the pod's state to users.
	Owned bool
	// Conditions come from the parts.
	Conditions []corev1.PodCondition
	// Devices is the health of devices, by container.
	Devices map[string][]corev1.ResourceStatus
}

// stamp truncates to seconds, as the API stores times; otherwise a status would always differ from the stored one.
func stamp(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// Status computes the pod's status from its previous status and what was observed. It is a pure function.
func Status(p *corev1.Pod, o Observed, d Decision, f Facts, now time.Time) corev1.PodStatus {
	s := *p.Status.DeepCopy()
	s.ObservedGeneration = p.Generation
	runs := func(c corev1.ContainerStatus) bool { return c.State.Running != nil }
	if isTerminal(p) && p.DeletionTimestamp == nil && len(s.ContainerStatuses) > 0 && d.Stopped &&
		!slices.ContainsFunc(s.ContainerStatuses, runs) {
		return s
	}
	terminal := d.Stopped && !o.Claimed
	if s.StartTime == nil && !f.Start.IsZero() {
		s.StartTime = new(stamp(f.Start))
	}
	if f.HostIP != "" && (d.Verdict == nil || len(o.Containers) > 0) {
		s.HostIP, s.HostIPs = f.HostIP, []corev1.HostIP{{IP: f.HostIP}}
	}
	if f.PodIP != "" {
		s.PodIP, s.PodIPs = f.PodIP, []corev1.PodIP{{IP: f.PodIP}}
	}
	ended := isTerminal(p) && len(s.ContainerStatuses) == 0 // rejected by an earlier process
	rejected := (d.Verdict != nil || ended) && len(o.Containers) == 0 && !slices.ContainsFunc(s.ContainerStatuses, runs)
	if !rejected {
		b := statusBuilder{p: p, o: o, f: f, d: d, now: now, sources: sources(p, o)}
		s.InitContainerStatuses = b.all(p.Spec.InitContainers, s.InitContainerStatuses, true)
		s.ContainerStatuses = b.all(p.Spec.Containers, s.ContainerStatuses, false)
		var eph []corev1.Container
		for _, e := range p.Spec.EphemeralContainers {
			eph = append(eph, corev1.Container(e.EphemeralContainerCommon))
		}
		b.ephemeral = true
		s.EphemeralContainerStatuses = b.all(eph, s.EphemeralContainerStatuses, false)
		if o.Share.requests != nil {
			s.Resources, s.AllocatedResources = o.Share.now(o.Limits), o.Share.requests.DeepCopy()
		}
	}
	if !isTerminal(p) {
		s.Phase = phase(p, &s, d.Initialized, terminal)
	}
	if s.Phase != p.Status.Phase {
		s.Reason, s.Message = "", "" // they belonged to the former phase
	}
	if d.Verdict != nil {
		s.Reason, s.Message = d.Verdict.Reason, d.Verdict.Message
		if terminal {
			s.Phase = corev1.PodFailed
		}
	}
	conditions(p, o, &s, d, now)
	for _, c := range f.Conditions {
		c.ObservedGeneration, c.LastTransitionTime = p.Generation, stamp(now)
		SetCondition(&s, c)
	}
	if d.Verdict != nil && d.Verdict.Disrupted {
		SetCondition(&s, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: d.Verdict.Message, ObservedGeneration: p.Generation, LastTransitionTime: stamp(now),
		})
	}
	return s
}

type statusBuilder struct {
	p         *corev1.Pod
	o         Observed
	f         Facts
	d         Decision
	now       time.Time
	ephemeral bool
	sources   map[int]time.Time // by round
}

func (b statusBuilder) all(list []corev1.Container, old []corev1.ContainerStatus, init bool) []corev1.ContainerStatus {
	if len(list) == 0 {
		return nil
	}
	was := map[string]*corev1.ContainerStatus{}
	for i := range old {
		was[old[i].Name] = &old[i]
	}
	out := make([]corev1.ContainerStatus, 0, len(list))
	for i := range list {
		out = append(out, b.one(&list[i], was[list[i].Name], init))
	}
	return out
}

func (b statusBuilder) one(c *corev1.Container, was *corev1.ContainerStatus, init bool) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image}
	if !b.ephemeral {
		s.Started = new(bool)
	}
	if was != nil {
		s.LastTerminationState, s.RestartCount, s.ContainerID = was.LastTerminationState, was.RestartCount, was.ContainerID
		s.ImageID, s.VolumeMounts = was.ImageID, was.VolumeMounts
		s.AllocatedResourcesStatus = was.AllocatedResourcesStatus // kept after the devices are released
	}
	if devices := b.f.Devices[c.Name]; len(devices) > 0 {
		s.AllocatedResourcesStatus = devices
	}
	for _, m := range c.VolumeMounts {
		if len(s.VolumeMounts) == len(c.VolumeMounts) {
			break
		}
		v := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			off := corev1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled {
				off = corev1.RecursiveReadOnlyEnabled
			}
			v.RecursiveReadOnly = &off
		}
		s.VolumeMounts = append(s.VolumeMounts, v)
	}
	list := b.o.Containers[c.Name]
	if len(list) == 0 {
		b.missing(c, was, init, &s)
		return s
	}
	l := list[0]
	if l.State == runtime.Created && len(list) > 1 {
		l = list[1] // the new instance counts from its start
	}
	if l.State != runtime.Created { // reported with the start
		s.RestartCount, s.ContainerID = int32(l.Attempt), "containerd://"+l.ID
		s.Image, s.ImageID = label(l, labelImage, l.Image), label(l, labelImageID, l.ImageID)
		s.User = userOf(l)
	}
	if was != nil && was.State.Terminated != nil && was.ContainerID != s.ContainerID {
		s.LastTerminationState = was.State // the runtime may have lost that instance
	}
	for _, old := range list {
		if old.Attempt < l.Attempt && old.State == runtime.Exited {
			s.LastTerminationState = corev1.ContainerState{Terminated: b.terminated(old)}
			break
		}
	}
	switch l.State {
	case runtime.Created:
		b.missing(c, was, init, &s)
	case runtime.Running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: stamp(l.StartedAt)}
		if !b.ephemeral { // an ephemeral container is never ready
			h := b.o.Health[l.ID]
			started := h.Started && (b.o.Busy[c.Name] != Start || !hooked(b.p, c.Name))
			s.Ready, s.Started = started && h.Ready && (!init || isSidecar(c)), &started
		}
	case runtime.Exited:
		if between := l.Round < b.d.Round || b.d.Source != nil && b.d.Round == l.Round; between && !b.ephemeral &&
			!b.d.Stopping {
			b.betweenRounds(c, l, &s)
		} else {
			b.ended(c, l, init, &s)
		}
	}
	b.resources(c, l, &s)
	return s
}

func (b statusBuilder) resources(c *corev1.Container, l Instance, s *corev1.ContainerStatus) {
	if b.ephemeral {
		return
	}
	s.AllocatedResources = c.Resources.Requests.DeepCopy()
	have, known := b.o.Amounts[l.ID]
	if !known || l.State != runtime.Running {
		have = amountsOf(b.p, c)
	}
	s.Resources = resourcesNow(b.p, c, have)
}

func userOf(l Instance) *corev1.ContainerUser {
	if l.User == nil {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
		UID: l.User.UID, GID: l.User.GID, SupplementalGroups: slices.Clone(l.User.Groups),
	}}
}

func label(i Instance, key, otherwise string) string {
	if v := i.Labels[key]; v != "" {
		return v
	}
	return otherwise
}

// missing sets the state of a container of which the runtime has no started instance.
func (b statusBuilder) missing(c *corev1.Container, was *corev1.ContainerStatus, init bool, s *corev1.ContainerStatus) {
	if was != nil && was.State.Terminated != nil {
		s.State, s.Ready = was.State, was.Ready && init
		return
	}
	if was != nil && was.State.Running != nil {
		s.State.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", ContainerID: was.ContainerID,
			StartedAt: was.State.Running.StartedAt, FinishedAt: stamp(b.now),
			Message: "The container could not be located when the pod was terminated",
		}
		if !b.d.Stopping {
			s.LastTerminationState, s.State = s.State, corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"},
			}
		}
		return
	}
	if init && !isSidecar(c) && b.d.Initialized && len(b.o.Containers[c.Name]) == 0 {
		s.Ready = true // a main container of this round proves that it has succeeded
		s.State.Terminated = &corev1.ContainerStateTerminated{
			Reason: "Completed", Message: "The node has lost this container's state. It exited with code 0: a main container " +
				"started after it",
		}
		return
	}
	w := &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	if len(b.p.Spec.InitContainers) > 0 && !b.ephemeral {
		w.Reason = "PodInitializing"
	}
	if f, failed := b.o.Failures[c.Name]; failed {
		w.Reason, w.Message = f.Reason, f.Message
	} else if b.f.Owned {
		w.Message = b.o.unprepared()
	}
	s.State.Waiting = w
}

func (b statusBuilder) ended(c *corev1.Container, l Instance, init bool, s *corev1.ContainerStatus) {
	t := b.terminated(l)
	if init && !isSidecar(c) && l.ExitCode == 0 {
		s.Ready = true
	}
	again := !b.d.Stopping && !b.ephemeral && b.o.restarts(b.p, c, &l, init)
	wait := waitOf(&l)
	f, failed := b.o.Failures[c.Name]
	switch {
	case again && failed:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	case again && wait > 0 && b.now.Before(l.FinishedAt.Add(wait)):
		s.State.Waiting = b.backOff(c, wait)
	default:
		s.State.Terminated = t
		return
	}
	s.LastTerminationState = corev1.ContainerState{Terminated: t}
}

func (b statusBuilder) backOff(c *corev1.Container, wait time.Duration) *corev1.ContainerStateWaiting {
	return &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: fmt.Sprintf(
		"back-off %s restarting failed container=%s pod=%s_%s(%s)", wait, c.Name, b.p.Name, b.p.Namespace, b.p.UID)}
}

func (b statusBuilder) terminated(l Instance) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: int32(l.ExitCode), Signal: int32(l.Signal), Reason: "Error", Message: l.Message,
		FinishedAt: stamp(l.FinishedAt), ContainerID: "containerd://" + l.ID,
	}
	if !l.StartedAt.IsZero() {
		t.StartedAt = stamp(l.StartedAt)
	}
	switch {
	case l.OOMKilled:
		t.Reason = "OOMKilled"
	case b.reset(l):
		t.Reason = resetReason
	case l.ExitCode == 0:
		t.Reason = "Completed"
	case l.ExitCode == 128 && l.Message != "":
		t.Reason = "StartError"
	}
	t.Signal = 0
	if b.f.Message != nil && t.Message == "" {
		t.Message = b.f.Message(l)
	}
	return t
}
