package fakenode

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plan returns the next write for a pod and how long to wait before it; false if there is none.
func (n *Nodes) plan(p *corev1.Pod, now time.Time) (t task, after time.Duration, ok bool) {
	t.podKey = podKey{p.Namespace, p.Name, p.UID}
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	begin := now
	if p.Status.StartTime != nil {
		begin = p.Status.StartTime.Time
	}
	lasts, result := life(p)
	switch {
	case p.DeletionTimestamp != nil && !over && len(p.Finalizers) > 0: // finalizers wait for the end
		t.patch = patch(p, ended(p, begin, now, exit{code: 137, reason: "Error"}))
	case p.DeletionTimestamp != nil: // a pod with a grace period of 0 waits only for its finalizers
		return t, 0, p.DeletionGracePeriodSeconds == nil || *p.DeletionGracePeriodSeconds > 0
	case over:
		return t, 0, false
	case lasts == 0:
		t.patch = patch(p, n.address(p, ended(p, begin, now, result)))
	case p.Status.Phase != corev1.PodRunning || ready(p) != isReady(p):
		t.patch = patch(p, n.address(p, running(p, begin)))
	case lasts > 0:
		finish := begin.Add(lasts)
		t.patch = patch(p, ended(p, begin, finish, result))
		return t, max(finish.Sub(now), 0), true
	default:
		return t, 0, false
	}
	return t, 0, true
}

type exit struct {
	code            int32
	reason, message string
}

// life returns how long a pod runs (negative means for ever) and how it ends.
func life(p *corev1.Pod) (time.Duration, exit) {
	if p.Spec.RestartPolicy != corev1.RestartPolicyNever && p.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return -1, exit{}
	}
	result := exit{reason: "Completed"}
	if text, set := p.Annotations[ExitCodeAnnotation]; set {
		code, err := strconv.ParseUint(text, 10, 8)
		if err != nil {
			return 0, exit{
				128, "InvalidAnnotation",
				fmt.Sprintf("annotation %s: %q is not an exit code from 0 to 255", ExitCodeAnnotation, text),
			}
		}
		if code > 0 {
			result = exit{code: int32(code), reason: "Error"}
		}
	}
	text, set := p.Annotations[DurationAnnotation]
	if !set {
		return 0, result
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, exit{
			128, "InvalidAnnotation", fmt.Sprintf("annotation %s: %q is not a duration such as 5s", DurationAnnotation, text),
		}
	}
	return d, result
}

// patch returns a merge patch of a pod's status. Its UID precondition protects a new pod of the same name.
func patch(p *corev1.Pod, s corev1.PodStatus) []byte {
	s.ObservedGeneration = p.Generation
	out, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": s})
	if err != nil {
		return []byte("{}")
	}
	return out
}

func running(p *corev1.Pod, begin time.Time) corev1.PodStatus {
	at := metav1.NewTime(begin)
	s := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &at, Conditions: conditions(p, true, begin)}
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			s.InitContainerStatuses = append(s.InitContainerStatuses, container(p, c, state))
		} else {
			s.InitContainerStatuses = append(s.InitContainerStatuses, initialized(p, c, begin))
		}
	}
	for i := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, container(p, &p.Spec.Containers[i], state))
	}
	return s
}

func ended(p *corev1.Pod, begin, finish time.Time, result exit) corev1.PodStatus {
	at := metav1.NewTime(begin)
	s := corev1.PodStatus{Phase: corev1.PodSucceeded, StartTime: &at, Conditions: conditions(p, false, finish)}
	if result.code != 0 {
		s.Phase = corev1.PodFailed
	}
	if result.message != "" {
		s.Reason, s.Message = result.reason, result.message
	}
	for i := range p.Spec.InitContainers {
		s.InitContainerStatuses = append(s.InitContainerStatuses, initialized(p, &p.Spec.InitContainers[i], begin))
	}
	for i := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses,
			container(p, &p.Spec.Containers[i], terminated(begin, finish, result)))
	}
	return s
}

func terminated(begin, finish time.Time, result exit) corev1.ContainerState {
	return corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: result.code, Reason: result.reason, Message: result.message,
			StartedAt: metav1.NewTime(begin), FinishedAt: metav1.NewTime(finish)},
	}
}

func container(p *corev1.Pod, c *corev1.Container, state corev1.ContainerState) corev1.ContainerStatus {
	runs := state.Running != nil
	return corev1.ContainerStatus{
		Name:        c.Name,
		Image:       c.Image,
		ImageID:     c.Image,
		ContainerID: "fake://" + string(p.UID) + "-" + c.Name,
		State:       state,
		Ready:       runs,
		Started:     &runs,
	}
}

// initialized returns the status of an init container that has succeeded.
func initialized(p *corev1.Pod, c *corev1.Container, at time.Time) corev1.ContainerStatus {
	s := container(p, c, terminated(at, at, exit{reason: "Completed"}))
	s.Ready = true
	return s
}

func conditions(p *corev1.Pod, runs bool, at time.Time) []corev1.PodCondition {
	condition := func(kind corev1.PodConditionType, is bool, reason string) corev1.PodCondition {
		c := corev1.PodCondition{
			Type:               kind,
			Status:             corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(at),
			ObservedGeneration: p.Generation,
		}
		if !is {
			c.Status, c.Reason = corev1.ConditionFalse, reason
		}
		return c
	}
	reason := "PodCompleted"
	if runs {
		reason = "ReadinessGatesNotReady"
	}
	return []corev1.PodCondition{
		condition(corev1.PodReadyToStartContainers, runs, ""),
		condition(corev1.PodInitialized, true, ""),
		condition(corev1.ContainersReady, runs, reason),
		condition(corev1.PodReady, runs && ready(p), reason),
	}
}

// ready reports whether a running pod is ready: whether all its readiness gates are true.
func ready(p *corev1.Pod) bool {
	return !slices.ContainsFunc(p.Spec.ReadinessGates, func(gate corev1.PodReadinessGate) bool {
		return !is(p, gate.ConditionType)
	})
}

func isReady(p *corev1.Pod) bool { return is(p, corev1.PodReady) }

func is(p *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// addresses is the range of pod addresses: the carrier-grade NAT range (RFC 6598), which no cluster uses.
var addresses = netip.MustParsePrefix("100.64.0.0/10")

// address adds a pod IP to a status, unless the pod has one or uses the host network, whose node has no address.
func (n *Nodes) address(p *corev1.Pod, s corev1.PodStatus) corev1.PodStatus {
	if p.Spec.HostNetwork || p.Status.PodIP != "" {
		return s
	}
	base := addresses.Addr().As4()
	var ip [4]byte
	host := n.addresses.Add(1) % (1<<(32-addresses.Bits()) - 1)
	binary.BigEndian.PutUint32(ip[:], binary.BigEndian.Uint32(base[:])+1+host)
	s.PodIP = netip.AddrFrom4(ip).String()
	s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	return s
}
