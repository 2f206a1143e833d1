package v1alpha1

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels of a task's pods: the task's name, and the number and index of the attempt.
const (
	LabelTask    = "tasks.coracle.dev/task"
	LabelAttempt = "tasks.coracle.dev/attempt"
	LabelIndex   = "tasks.coracle.dev/index"
)

// FinalizerRecorded keeps a pod until its result is recorded in the status of its task.
const FinalizerRecorded = "tasks.coracle.dev/recorded"

// SchedulerName is the scheduler profile for tasks. It prefers the node with the fewest running tasks, the most
// free capacity and the most recent heartbeat.
const SchedulerName = "task"

// ContainerName is the name of the main container in a task's pods, and OutputVolume the name of the volume at
// spec.outputPath.
const (
	ContainerName = "task"
	OutputVolume  = "task-output"
)

// UsageCondition is the condition with which an agent reports the usage of a pod whose container has ended: its message
// is a TaskUsage as JSON.
const UsageCondition corev1.PodConditionType = "tasks.coracle.dev/Usage"

// PodName returns the name of an attempt's pod. It depends only on the task and the attempt, so an attempt has at
// most one pod.
func PodName(t *Task, a *TaskAttempt) string {
	uid := string(t.UID)
	name := t.Name + "-" + uid[:min(8, len(uid))]
	if a.Index != nil {
		name += fmt.Sprintf("-%d", *a.Index)
	}
	return fmt.Sprintf("%s-%d", name, a.Number)
}

// AnyPod replaces the pod's UID in requests to an agent for the log of an attempt by pod name. If the name ends
// with "*", the agent takes the pod with the highest number in its place.
const AnyPod = "-"

// Pod returns the pod of an attempt. It shares no memory with the task.
func Pod(t *Task, a *TaskAttempt) *corev1.Pod {
	s := t.Spec.DeepCopy()
	no := false
	c := corev1.Container{
		Name: ContainerName, Image: s.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: s.Command, Args: s.Args,
		Env: append(environment(t, a), s.Env...), WorkingDir: s.WorkingDir,
	}
	if s.Resources != nil {
		c.Resources = *s.Resources
	}
	for _, p := range s.Ports {
		c.Ports = append(c.Ports, corev1.ContainerPort{
			HostPort:      p.HostPort,
			ContainerPort: p.ContainerPort,
			Protocol:      p.Protocol,
			HostIP:        p.HostIP,
		})
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.Namespace, Name: PodName(t, a),
			Finalizers:      []string{FinalizerRecorded},
			Labels:          map[string]string{LabelTask: t.Name, LabelAttempt: strconv.Itoa(int(a.Number))},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(t, GroupVersion.WithKind("Task"))},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, NodeSelector: maps.Clone(s.NodeSelector), Tolerations: s.Tolerations,
			PriorityClassName: s.PriorityClassName, SchedulerName: SchedulerName,
			TerminationGracePeriodSeconds: s.StopTimeoutSeconds,
			ServiceAccountName:            s.ServiceAccountName, InitContainers: s.InitContainers,
		},
	}
	if s.ServiceAccountName == "" {
		// The token of the namespace's default account would be of no use.
		p.Spec.AutomountServiceAccountToken = &no
	}
	if a.Index != nil {
		p.Labels[LabelIndex] = strconv.Itoa(int(*a.Index))
	}
	for i, v := range s.Volumes {
		name := cmp.Or(v.Name, fmt.Sprintf("volume-%d", i))
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: v.ConfigMap, Secret: v.Secret, EmptyDir: v.EmptyDir, HostPath: v.HostPath,
			PersistentVolumeClaim: v.PersistentVolumeClaim,
		}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
			Name: name, MountPath: v.MountPath, SubPath: v.SubPath,
			ReadOnly: v.ReadOnly || v.ConfigMap != nil || v.Secret != nil,
		})
	}
	if s.OutputPath != "" {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
			Name: OutputVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: OutputVolume, MountPath: s.OutputPath})
	}
	p.Spec.Containers = []corev1.Container{c}
	node := s.NodeName
	if st := t.Status.Array; st != nil && a.Index != nil && int(*a.Index) < len(st.Targets) {
		node = st.Targets[*a.Index]
	}
	if node != "" {
		// Let the scheduler place the pod, so that it respects the node's capacity.
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				},
			}}},
		}}
	}
	return p
}

func environment(t *Task, a *TaskAttempt) []corev1.EnvVar {
	env := []corev1.EnvVar{{Name: "TASK_NAME", Value: t.Name}, {Name: "TASK_ATTEMPT", Value: strconv.Itoa(int(a.Number))}}
	if a.Index != nil && t.Spec.Array != nil {
		env = append(env, corev1.EnvVar{Name: "TASK_INDEX", Value: strconv.Itoa(int(*a.Index))},
			corev1.EnvVar{Name: "TASK_COUNT", Value: strconv.Itoa(int(t.Size()))})
	}
	return env
}
