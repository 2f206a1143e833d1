package controller

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
)

func (p *plan) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: p.o.Part.GetGeneration(), LastTransitionTime: p.now,
	})
}

func (p *plan) forget(kind string) { meta.RemoveStatusCondition(&p.Status.Conditions, kind) }

// ready sets the condition Ready to false, with a reason.
func (p *plan) ready(reason, message string) {
	p.Status.State = buildbarn.NotReady
	p.condition(buildbarn.ConditionReady, metav1.ConditionFalse, reason, message)
}

func (p *plan) count() {
	p.Status.Replicas, p.Status.ReadyReplicas = 0, 0
	if d := p.o.Deployment; d != nil && metav1.IsControlledBy(d, p.o.Part) {
		p.Status.Replicas, p.Status.ReadyReplicas = d.Status.Replicas, d.Status.ReadyReplicas
	}
	if s := p.o.StatefulSet; s != nil && metav1.IsControlledBy(s, p.o.Part) {
		p.Status.Replicas, p.Status.ReadyReplicas = s.Status.Replicas, s.Status.ReadyReplicas
	}
}

// current reports whether all pods have the present template and the workload's controller has observed it. It is
// false without a workload.
func (p *plan) current(replicas int32) bool {
	if s := p.o.StatefulSet; s != nil {
		return s.Status.ObservedGeneration >= s.Generation && s.Status.Replicas == replicas &&
			(replicas == 0 || s.Status.UpdateRevision == s.Status.CurrentRevision || s.Status.UpdatedReplicas == replicas)
	}
	if d := p.o.Deployment; d != nil {
		return d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas == replicas &&
			d.Status.UpdatedReplicas == replicas
	}
	return false
}

func (p *plan) summary(replicas int32) {
	s := &p.Status
	if p.foreign != "" {
		p.condition(buildbarn.ConditionChildren, metav1.ConditionFalse, "NameTaken", p.foreign)
	} else {
		p.condition(buildbarn.ConditionChildren, metav1.ConditionTrue, "Owned", "")
	}
	if p.o.Deployment == nil && p.o.StatefulSet == nil {
		s.State = buildbarn.NotFound
		reason, message := "NoPods", "there is no Deployment or StatefulSet yet"
		if c := p.failing(); c != nil {
			reason, message = c.Reason, c.Message
		}
		p.condition(buildbarn.ConditionReady, metav1.ConditionFalse, reason, message)
		return
	}
	switch c := p.failing(); {
	case c != nil && c.Type != buildbarn.ConditionSharding:
		p.ready(c.Reason, c.Message)
	case !p.settled || !p.current(replicas) || s.ReadyReplicas != replicas:
		p.ready("PodsNotReady", fmt.Sprintf("%d of %s ready", s.ReadyReplicas, count.Of(replicas, "pod")))
	default:
		s.State = buildbarn.Ready
		p.condition(buildbarn.ConditionReady, metav1.ConditionTrue, "PodsReady",
			fmt.Sprintf("%d of %s ready", s.ReadyReplicas, count.Of(replicas, "pod")))
		if c := meta.FindStatusCondition(s.Conditions, buildbarn.ConditionSharding); c != nil && c.Reason == "Resharding" {
			p.condition(buildbarn.ConditionSharding, metav1.ConditionTrue, "Resharded", c.Message)
		}
	}
}

// failing returns the most important condition that is false, or nil.
func (p *plan) failing() *metav1.Condition {
	for _, kind := range []string{
		buildbarn.ConditionChildren, buildbarn.ConditionConfigValid, buildbarn.ConditionCertificates,
		buildbarn.ConditionProgressing, buildbarn.ConditionClaimsValid,
		buildbarn.ConditionIngressReady, buildbarn.ConditionScaling, buildbarn.ConditionSharding,
	} {
		if c := meta.FindStatusCondition(p.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			return c
		}
	}
	return nil
}

// progress sets the condition Progressing: why pods do not start. Its messages stay the same while a pod retries.
func (p *plan) progress() {
	pods := slices.Clone(p.o.Pods)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if reason, message := stuck(pod); reason != "" {
			p.condition(buildbarn.ConditionProgressing, metav1.ConditionFalse, reason, message)
			return
		}
	}
	p.condition(buildbarn.ConditionProgressing, metav1.ConditionTrue, "AsExpected", "")
}

// stuck returns why a pod does not start. The reason is empty if the pod runs or may still start.
func stuck(pod *corev1.Pod) (reason, message string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return "Unschedulable", fmt.Sprintf("pod %s has no node: %s", pod.Name, c.Message)
		}
	}
	images := map[string]string{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		images[c.Name] = c.Image
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil {
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
				"RegistryUnavailable":
				return "ImageNotFound", fmt.Sprintf("the image %s of container %s cannot be pulled: see the events of pod %s",
					images[c.Name], c.Name, pod.Name)
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return w.Reason, fmt.Sprintf("container %s of pod %s cannot start: %s", c.Name, pod.Name, w.Message)
			}
		}
		if t := c.LastTerminationState.Terminated; t != nil && !c.Ready && t.ExitCode != 0 {
			return "ContainerFails", fmt.Sprintf("container %s of pod %s ended with exit code %d: see its log", c.Name, pod.Name,
				t.ExitCode)
		}
	}
	return "", ""
}

// events records conditions that became false, and that the part became ready.
func (p *plan) events() {
	for _, c := range p.Status.Conditions {
		was := meta.FindStatusCondition(p.o.Part.Observed().Conditions, c.Type)
		same := was != nil && was.Status == c.Status && was.Reason == c.Reason
		switch {
		case same:
		case c.Type == buildbarn.ConditionReady && c.Status == metav1.ConditionTrue:
			p.Events = append(p.Events, Event{corev1.EventTypeNormal, c.Reason, c.Message})
		case c.Type == buildbarn.ConditionReady && c.Reason == "InvalidSpec",
			c.Type != buildbarn.ConditionReady && c.Status == metav1.ConditionFalse:
			p.Events = append(p.Events, Event{corev1.EventTypeWarning, c.Reason, c.Message})
		}
	}
}
