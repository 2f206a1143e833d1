package view

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// Pod converts a pod for clients; own is the facade's namespace.
func Pod(p *corev1.Pod, own string) wire.Pod {
	out := wire.Pod{
		PodID: ID(p.Namespace, own, p.Name), Name: name(p), Namespace: p.Namespace,
		Labels: userMetadata(p.Labels), Annotations: userMetadata(p.Annotations),
		Status: podStatus(p), NodeID: p.Spec.NodeName, RestartPolicy: string(p.Spec.RestartPolicy),
		CreatedAt: p.CreationTimestamp.Time, Message: p.Status.Message, Reason: p.Status.Reason,
		Containers: []wire.Container{},
	}
	for i := range p.Status.Conditions {
		switch c := &p.Status.Conditions[i]; {
		case c.Type != corev1.PodScheduled:
		case c.Status == corev1.ConditionTrue:
			out.ScheduledAt = when(&c.LastTransitionTime)
		case out.Message == "":
			out.Reason, out.Message = c.Reason, c.Message
		}
	}
	if p.Status.Phase != corev1.PodPending {
		out.StartedAt = when(p.Status.StartTime)
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		var status *corev1.ContainerStatus
		if at := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == c.Name
		}); at >= 0 {
			status = &p.Status.ContainerStatuses[at]
		}
		container := containerOf(c, status)
		if f := container.FinishedAt; f != nil && (out.FinishedAt == nil || f.After(*out.FinishedAt)) {
			out.FinishedAt = f
		}
		out.Containers = append(out.Containers, container)
	}
	if out.Status != wire.PodSucceeded && out.Status != wire.PodFailed {
		out.FinishedAt = nil
	}
	return out
}

func podStatus(p *corev1.Pod) string {
	switch p.Status.Phase {
	case corev1.PodRunning:
		return wire.PodRunning
	case corev1.PodSucceeded:
		return wire.PodSucceeded
	case corev1.PodFailed:
		return wire.PodFailed
	case corev1.PodUnknown:
		return wire.PodUnknown
	}
	if p.Spec.NodeName != "" {
		return wire.PodScheduled
	}
	return wire.PodPending
}

// NewPod returns the pod of a request, with the given object name.
func NewPod(in *wire.CreatePod, namespace, objectName string) (*corev1.Pod, error) {
	if err := checkPod(in); err != nil {
		return nil, err
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        objectName,
			Labels:      mark(in.Labels, Managed, "true"),
			Annotations: mark(in.Annotations, NameAnnotation, in.Name),
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicy(in.RestartPolicy), Tolerations: []corev1.Toleration{tasks.ToleratesExternal()},
		},
	}
	if in.RestartPolicy == "" { // Podling's pods end with their containers
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	for i := range in.Containers {
		c, err := Container(&in.Containers[i])
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", in.Containers[i].Name, err)
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p, nil
}

func checkPod(in *wire.CreatePod) error {
	if in.Name == "" {
		return errors.New("name is required")
	}
	if len(in.Containers) == 0 {
		return errors.New("at least one container is required")
	}
	seen := map[string]bool{}
	for i := range in.Containers {
		switch c := &in.Containers[i]; {
		case c.Name == "":
			return errors.New("all containers must have a name")
		case c.Image == "":
			return errors.New("all containers must have an image")
		case seen[c.Name]:
			return errors.New("container names must be unique within a pod")
		}
		seen[in.Containers[i].Name] = true
	}
	return nil
}

// mark returns labels or annotations with an added one of the facade. It drops the client's entries with the facade's
// prefix.
func mark(m map[string]string, key, value string) map[string]string {
	out := maps.Clone(userMetadata(m))
	if out == nil {
		out = map[string]string{}
	}
	out[key] = value
	return out
}

// maxStem leaves room for suffixes, including the suffixes of tasks' pods, within 63 characters.
const maxStem = 30

// Stem returns the beginning of an object name for a client's name.
func Stem(given string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(given) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
		if b.Len() >= maxStem {
			break
		}
	}
	stem := strings.Trim(b.String(), "-")
	if stem == "" || stem[0] >= '0' && stem[0] <= '9' {
		stem = strings.TrimSuffix("x-"+stem, "-")
	}
	return stem
}
