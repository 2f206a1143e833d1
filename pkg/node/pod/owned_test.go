package pod

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func taskPod(name string, command ...string) *corev1.Pod {
	p := podOf(name)
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Containers = []corev1.Container{containerNamed("task", command...)}
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: tasks.GroupVersion.String(), Kind: "Task", Name: name, UID: "task-uid", Controller: &yes},
	}
	return p
}

func TestBriefTasksAreReportedOnce(t *testing.T) {
	j := &journal{}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		var writes atomic.Int32
		r.api.refusing(func(string) error { writes.Add(1); return nil })
		r.create(taskPod("brief", "true"))
		r.pass(time.Second)
		p := r.pod("brief")
		require.Equal(t, corev1.PodSucceeded, p.Status.Phase)
		require.Equal(t, "terminated: Completed 0", state(r.status("brief", "task")))
		require.EqualValues(t, 1, writes.Load())
		require.Empty(t, r.events.text(), "the task says when it ran")

		r.create(taskPod("lasting", "server", "lasting"))
		r.pass(settleOwned / 2)
		require.Empty(t, r.pod("lasting").Status.ContainerStatuses)
		r.change("lasting", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
		require.Empty(t, r.pod("lasting").Status.ContainerStatuses)
		r.pass(settleOwned)
		require.Equal(t, "running", state(r.status("lasting", "task")))
		r.delete("lasting", 1)
		r.pass(time.Minute)

		plain := podOf("plain")
		plain.Spec.Containers = []corev1.Container{containerNamed("c", "server", "plain")}
		r.create(plain)
		require.Equal(t, "running", state(r.status("plain", "c")), "pods of others are reported at once")
		require.Contains(t, r.events.text(), "Started")
	})
}

// Failures of a task's container cause events, and so do pulls, because they take long.
func TestEventsOfTasks(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := taskPod("pulls", "true")
		p.Spec.Containers[0].Image = "elsewhere"
		r.create(p)
		r.pass(time.Second)
		all := r.events.text()
		require.Contains(t, all, "Pulling")
		require.Contains(t, all, "Pulled")
		require.NotContains(t, all, "Started")

		r.network.refusing(func(string) error { return errors.New("host port 22 is reserved") })
		r.create(taskPod("port", "true"))
		require.Equal(t, "ContainerCreating", r.status("port", "task").State.Waiting.Reason)
		require.Contains(t, r.status("port", "task").State.Waiting.Message, "host port 22 is reserved",
			"the task's status says it, and fails in time")
		r.network.refusing(nil)
		r.delete("port", 1)
		r.pass(time.Minute)

		r.create(taskPod("fails", "no-such-program"))
		r.pass(time.Second)
		require.Contains(t, r.events.text(), "Failed")
	})
}
