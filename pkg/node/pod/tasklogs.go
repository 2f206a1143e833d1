package pod

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/tasks/tasklogs"
)

// TaskLogs returns the logs of tasks whose pods are gone.
func (m *Manager) TaskLogs() *tasklogs.Archive { return m.taskLogs }

// taskLogsDir is the directory for them below the directory for logs. No pod's directory has such a name.
const taskLogsDir = ".tasks"

// taskOf returns the UID of the task that controls a pod; empty if none does.
func taskOf(p *corev1.Pod) string {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != "Task" || ref.APIVersion != tasks.GroupVersion.String() {
		return ""
	}
	return string(ref.UID)
}

// keepTaskLogs moves the logs of a task's pod, before anything of the pod is removed, to where they stay until the task is deleted.
func (w *worker) keepTaskLogs(p *corev1.Pod) error {
	task := taskOf(p)
	for _, c := range w.m.containers.of(w.uid) { // the pod may have been deleted while no agent ran: then only its containers tell
		if task == "" {
			task = c.Labels[labelTask]
		}
	}
	if task == "" || p.Name == "" {
		return nil
	}
	return w.m.taskLogs.Keep(filepath.Join(w.m.c.LogDir, logDirName(p)), task, string(w.uid), p.Name)
}
