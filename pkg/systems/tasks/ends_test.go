package tasks_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func taskOf(name, code string) *tasks.Task {
	return &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       tasks.TaskSpec{Image: "x", Args: []string{"exit", code}},
	}
}

func (c *cluster) taskEnds(name string) *tasks.Task {
	c.T.Helper()
	return controlplane.Until(c, &tasks.TaskList{}, "default", name, func(t *tasks.Task) bool {
		return t.Status.Phase.Ended()
	})
}

// TestTasksLetGoOfTheirPods checks that an attempt's end is recorded before its pod is deleted: in process, over HTTP,
// and if another client deletes the pod first.
func TestTasksLetGoOfTheirPods(t *testing.T) {
	for name, http := range map[string]bool{"in process": false, "over HTTP": true} {
		t.Run(name, func(t *testing.T) {
			c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: http})
			c.Node("a")
			goes := taskOf("goes", "0")
			goes.Spec.Args = nil
			again := taskOf("again", "3")
			again.Spec.Retries = 1
			again.Spec.BackoffSeconds = new(int32)
			c.Make(taskOf("good", "0"), taskOf("bad", "3"), again, goes)
			good := c.taskEnds("good")
			require.Equal(t, tasks.TaskCompleted, good.Status.Phase)
			for _, m := range good.ManagedFields {
				if m.Subresource == "status" {
					require.Equal(t, `{"f:status":{}}`, string(m.FieldsV1.GetRawBytes()), "one reconciler has all of it")
				}
			}
			require.EqualValues(t, 3, *c.taskEnds("bad").Status.ExitCode)
			require.Len(t, c.taskEnds("again").Status.Attempts, 2)
			running := controlplane.Until(c, &tasks.TaskList{}, "default", "goes", func(t *tasks.Task) bool {
				return t.Status.Phase == tasks.TaskRunning
			})
			require.NoError(t,
				c.Delete(c.Ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: running.Status.PodName}}))
			require.Equal(t, tasks.ReasonPodDeleted, c.taskEnds("goes").Status.Reason)
			for _, name := range []string{"good", "bad", "again", "goes"} {
				for _, a := range c.taskEnds(name).Status.Attempts {
					c.Gone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: a.Pod}})
				}
			}
		})
	}
}

// BenchmarkTasks measures the control plane's cost of a task whose container ends at once, with 500 tasks waiting for
// a node that runs 110 pods.
func BenchmarkTasks(b *testing.B) {
	c := start(b, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	const size = 500
	used := func() float64 {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
	}
	n, before := 0, used()
	for b.Loop() {
		n++
		w, err := c.Watch(c.Ctx, &tasks.TaskList{}, ctrl.InNamespace("default"))
		require.NoError(b, err)
		for i := range size {
			c.Make(taskOf(fmt.Sprint("bench-", n, "-", i), "0"))
		}
		for ended := map[string]bool{}; len(ended) < n*size; {
			e, ok := <-w.ResultChan()
			require.True(b, ok)
			if t, is := e.Object.(*tasks.Task); is && e.Type != watch.Deleted && t.Status.Phase.Ended() {
				ended[t.Name] = true
			}
		}
		w.Stop()
	}
	b.ReportMetric((used()-before)/float64(n*size), "cpu-ms/task")
	b.ReportMetric(float64(n*size)/b.Elapsed().Seconds(), "tasks/s")
}

func TestTasksEnd(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	for name, args := range map[string][]string{"good": {"exit", "0"}, "bad": {"exit", "3"}} {
		c.Make(&tasks.Task{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: tasks.TaskSpec{Image: "x", Args: args},
		})
	}
	good := controlplane.Until(c, &tasks.TaskList{}, "default", "good", func(t *tasks.Task) bool {
		return t.Status.Phase.Ended()
	})
	require.Equal(t, tasks.TaskCompleted, good.Status.Phase)
	require.EqualValues(t, 0, *good.Status.ExitCode)
	require.Equal(t, "a", good.Status.Node)
	require.NotNil(t, good.Status.StartedAt)
	bad := controlplane.Until(c, &tasks.TaskList{}, "default", "bad", func(t *tasks.Task) bool {
		return t.Status.Phase.Ended()
	})
	require.Equal(t, tasks.TaskFailed, bad.Status.Phase)
	require.EqualValues(t, 3, *bad.Status.ExitCode)
	require.Equal(t, "exit code 3", bad.Status.Error)
}
