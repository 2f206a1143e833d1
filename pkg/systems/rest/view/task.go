package view

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

var taskStatus = map[tasks.TaskPhase]string{
	"": wire.TaskPending, tasks.TaskPending: wire.TaskPending, tasks.TaskScheduled: wire.TaskScheduled,
	tasks.TaskRunning:   wire.TaskRunning,
	tasks.TaskCompleted: wire.TaskCompleted, tasks.TaskFailed: wire.TaskFailed,
}

// Task converts a task for clients.
func Task(t *tasks.Task) wire.Task {
	out := wire.Task{
		TaskID: t.Name, Name: name(t), Image: t.Spec.Image, Env: envMap(t.Spec.Env), Status: taskStatus[t.Status.Phase],
		NodeID:      t.Status.Node,
		ContainerID: containerID(t.Status.ContainerID), CreatedAt: t.CreationTimestamp.Time,
		StartedAt: when(t.Status.StartedAt), FinishedAt: when(t.Status.FinishedAt),
		RestartPolicy: t.Annotations[RestartPolicyAnnotation], HealthStatus: wire.HealthUnknown,
		Resources: requirements(t.Spec.Resources),
	}
	if t.Status.Phase == tasks.TaskFailed {
		out.Error = t.Status.Error
	}
	for _, p := range t.Spec.Ports {
		out.Ports = append(out.Ports, wire.ContainerPort{
			ContainerPort: int(p.ContainerPort),
			HostPort:      int(p.HostPort),
			Protocol:      string(p.Protocol),
		})
	}
	return out
}

// The restart policies in requests.
const (
	RestartAlways    = string(corev1.RestartPolicyAlways)
	RestartOnFailure = string(corev1.RestartPolicyOnFailure)
	RestartNever     = string(corev1.RestartPolicyNever)
)

// scheduleTimeout is how long a task waits for a node by default, in seconds.
const scheduleTimeout = 300

// retries is the number of retries of a task with the restart policy OnFailure.
const retries = 5

// NewTask returns the task of a request, with the given object name.
func NewTask(in *wire.CreateTask, namespace, objectName string) (*tasks.Task, error) {
	if in.Name == "" || in.Image == "" {
		return nil, errors.New("name and image are required")
	}
	if in.LivenessProbe != nil || in.ReadinessProbe != nil {
		return nil, errors.New("tasks have no probes: create a pod instead")
	}
	t := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        objectName,
			Labels:      map[string]string{Managed: "true"},
			Annotations: map[string]string{NameAnnotation: in.Name},
		},
		Spec: tasks.TaskSpec{
			Image:       in.Image,
			Env:         Env(in.Env),
			Tolerations: []corev1.Toleration{tasks.ToleratesExternal()},
		},
	}
	switch in.RestartPolicy {
	case "", RestartNever:
	case RestartOnFailure:
		t.Spec.Retries = retries
	default:
		return nil, fmt.Errorf("restartPolicy %q is not Never or OnFailure: a task ends when its container does; create a "+
			"pod instead", in.RestartPolicy)
	}
	if wait := cmp.Or(in.ScheduleTimeoutSeconds, scheduleTimeout); wait > 0 {
		t.Spec.ScheduleTimeoutSeconds = &wait
	}
	if in.RestartPolicy != "" {
		t.Annotations[RestartPolicyAnnotation] = in.RestartPolicy
	}
	var err error
	if t.Spec.Resources, err = Requirements(in.Resources); err != nil {
		return nil, err
	}
	for _, p := range in.Ports {
		host, err := number("hostPort", p.HostPort)
		if err != nil {
			return nil, err
		}
		port, err := number("containerPort", p.ContainerPort)
		if err != nil {
			return nil, err
		}
		if host == 0 {
			continue // the port is not published, and a task cannot be the target of a service
		}
		t.Spec.Ports = append(t.Spec.Ports, tasks.TaskPort{
			HostPort:      host,
			ContainerPort: port,
			Protocol:      protocol(p.Protocol),
		})
	}
	return t, nil
}

// AttemptID returns an external worker's ID for an attempt of a task. For the first attempt it is the task's ID, which
// clients use too. Other IDs contain the attempt's number and index, so that a late report cannot be mistaken for one
// of the next attempt.
func AttemptID(task string, a *tasks.TaskAttempt) string {
	id := task
	if a.Number > 1 || a.Index != nil {
		id += separator + strconv.Itoa(int(a.Number))
	}
	if a.Index != nil {
		id += separator + strconv.Itoa(int(*a.Index))
	}
	return id
}

// ParseAttemptID is the inverse of AttemptID.
func ParseAttemptID(id string) (task string, a tasks.TaskAttempt, ok bool) {
	parts := strings.Split(id, separator)
	a.Number = 1
	if len(parts) > 3 {
		return "", a, false
	}
	for i, part := range parts[1:] {
		n, err := strconv.ParseInt(part, 10, 32)
		if err != nil || n < 0 || strconv.FormatInt(n, 10) != part {
			return "", a, false
		}
		if number := int32(n); i == 0 {
			a.Number = number
		} else {
			a.Index = &number
		}
	}
	return parts[0], a, AttemptID(parts[0], &a) == id
}

// tokenVolume is the prefix of the volume that admission adds to every pod. External workers ignore it.
const tokenVolume = "kube-api-access-"

// Assignable returns an error if a pod needs something that external workers do not support.
func Assignable(p *corev1.Pod) error {
	s := &p.Spec
	for _, v := range s.Volumes {
		if !strings.HasPrefix(v.Name, tokenVolume) {
			return fmt.Errorf("external workers have no volumes: %s", v.Name)
		}
	}
	switch {
	case len(s.InitContainers) > 0:
		return errors.New("external workers have no init containers")
	case s.HostNetwork || s.HostPID || s.HostIPC:
		return errors.New("external workers do not share the namespaces of their host")
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.ValueFrom != nil }) || len(c.EnvFrom) > 0 {
			return fmt.Errorf("external workers cannot resolve environment variables from other objects: container %s", c.Name)
		}
		if c.LivenessProbe != nil && probeOf(c.LivenessProbe) == nil ||
			c.ReadinessProbe != nil && probeOf(c.ReadinessProbe) == nil || c.StartupProbe != nil || c.Lifecycle != nil {
			return fmt.Errorf("external workers have no such probe or lifecycle hook: container %s", c.Name)
		}
	}
	return nil
}

// AsTask reports whether a worker gets a pod as a task. It gets others, such as tasks with a command, as pods.
func AsTask(p *corev1.Pod, own string) bool {
	ref := metav1.GetControllerOf(p)
	if ref == nil || ref.Kind != "Task" || p.Namespace != own || len(p.Spec.Containers) != 1 {
		return false
	}
	c := &p.Spec.Containers[0]
	return len(c.Command) == 0 && len(c.Args) == 0 && c.WorkingDir == ""
}

// Assignment returns a worker's task for the pod of an attempt.
func Assignment(p *corev1.Pod) (wire.Task, error) {
	var a tasks.TaskAttempt
	n, err := strconv.ParseInt(p.Labels[tasks.LabelAttempt], 10, 32)
	if err != nil {
		return wire.Task{}, fmt.Errorf("pod %s has no valid label %s", p.Name, tasks.LabelAttempt)
	}
	a.Number = int32(n)
	if value, ok := p.Labels[tasks.LabelIndex]; ok {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return wire.Task{}, fmt.Errorf("pod %s has no valid label %s", p.Name, tasks.LabelIndex)
		}
		a.Index = new(int32(n))
	}
	c := &p.Spec.Containers[0]
	return wire.Task{
		TaskID: AttemptID(p.Labels[tasks.LabelTask], &a), Name: p.Labels[tasks.LabelTask], Image: c.Image, Env: envMap(c.Env),
		Status: wire.TaskScheduled,
		NodeID: p.Spec.NodeName, CreatedAt: p.CreationTimestamp.Time, RestartPolicy: RestartNever,
		HealthStatus: wire.HealthUnknown,
		Resources:    requirements(&c.Resources), Ports: portsOf(c.Ports),
	}, nil
}
