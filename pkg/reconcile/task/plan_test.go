package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

var (
	now   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	start = metav1.NewTime(now.Add(-time.Minute))
	end   = metav1.NewTime(now.Add(-time.Second))
)

func task(phase tasks.TaskPhase, pod string) *tasks.Task {
	return &tasks.Task{ObjectMeta: metav1.ObjectMeta{Name: "t", CreationTimestamp: start}, Status: tasks.TaskStatus{Phase: phase, PodName: pod, Node: map[bool]string{true: "n"}[phase == tasks.TaskRunning]}}
}

func pod(node string, s corev1.ContainerState) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "t"}, Spec: corev1.PodSpec{NodeName: node}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "containerd://1", State: s}}
	return p
}

func terminated(code int32, reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, StartedAt: start, FinishedAt: end}}
}

func TestPlan(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: start}}
	pulling := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}
	limited := task(tasks.TaskPending, "t")
	limited.Spec.ScheduleTimeoutSeconds = new(int64)
	*limited.Spec.ScheduleTimeoutSeconds = 30
	patient := limited.DeepCopy()
	*patient.Spec.ScheduleTimeoutSeconds = 90
	evicted := pod("n", corev1.ContainerState{})
	evicted.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "the node was low on memory"}
	for name, c := range map[string]struct {
		o            Observed
		phase        tasks.TaskPhase
		err          string
		create, stop bool
		again        time.Duration
		check        func(*testing.T, tasks.TaskStatus)
	}{
		"new":              {o: Observed{Task: task("", "")}, phase: tasks.TaskPending, create: true},
		"waits for a node": {o: Observed{Task: patient, Pod: pod("", corev1.ContainerState{})}, phase: tasks.TaskPending, again: 30 * time.Second},
		"no node in time":  {o: Observed{Task: limited, Pod: pod("", corev1.ContainerState{})}, phase: tasks.TaskFailed, err: "no available node within 30 s: ", stop: true},
		"bound":            {o: Observed{Task: task(tasks.TaskPending, "t"), Pod: pod("n", corev1.ContainerState{})}, phase: tasks.TaskScheduled},
		"image missing":    {o: Observed{Task: task(tasks.TaskScheduled, "t"), Pod: pod("n", pulling)}, phase: tasks.TaskScheduled, err: "ErrImagePull: no such image"},
		"runs":             {o: Observed{Task: task(tasks.TaskScheduled, "t"), Pod: pod("n", running)}, phase: tasks.TaskRunning, check: func(t *testing.T, s tasks.TaskStatus) { require.Equal(t, &start, s.StartedAt) }},
		"from new to ended": {o: Observed{Task: task("", ""), Pod: pod("n", terminated(0, "Completed", ""))}, phase: tasks.TaskCompleted, check: func(t *testing.T, s tasks.TaskStatus) {
			require.Equal(t, &end, s.FinishedAt)
			require.Equal(t, "n", s.Node)
		}},
		"exit code":         {o: Observed{Task: task(tasks.TaskRunning, "t"), Pod: pod("n", terminated(3, "Error", ""))}, phase: tasks.TaskFailed, err: "exit code 3", check: func(t *testing.T, s tasks.TaskStatus) { require.EqualValues(t, 3, *s.ExitCode) }},
		"memory":            {o: Observed{Task: task(tasks.TaskRunning, "t"), Pod: pod("n", terminated(137, "OOMKilled", ""))}, phase: tasks.TaskFailed, err: "OOMKilled: exit code 137"},
		"no such command":   {o: Observed{Task: task(tasks.TaskScheduled, "t"), Pod: pod("n", terminated(128, "StartError", "no such file"))}, phase: tasks.TaskFailed, err: "StartError: no such file"},
		"evicted":           {o: Observed{Task: task(tasks.TaskRunning, "t"), Pod: evicted}, phase: tasks.TaskFailed, err: "Evicted: the node was low on memory"},
		"worker offline":    {o: Observed{Task: task(tasks.TaskScheduled, "t"), Pod: pod("n", corev1.ContainerState{}), NodeLost: true}, phase: tasks.TaskFailed, err: "node n went offline", stop: true},
		"heartbeat lost":    {o: Observed{Task: task(tasks.TaskRunning, "t"), Pod: pod("n", running), NodeLost: true}, phase: tasks.TaskFailed, err: "node n lost its heartbeat", stop: true},
		"ended, then lost":  {o: Observed{Task: task(tasks.TaskRunning, "t"), Pod: pod("n", terminated(0, "", "")), NodeLost: true}, phase: tasks.TaskCompleted},
		"pod vanished":      {o: Observed{Task: task(tasks.TaskRunning, "t")}, phase: tasks.TaskFailed, err: "its pod t was deleted while it ran, or node n lost its heartbeat"},
		"ended is for ever": {o: Observed{Task: task(tasks.TaskCompleted, "t"), Pod: pod("n", terminated(3, "", ""))}, phase: tasks.TaskCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.o.Task.DeepCopy()
			a := Plan(c.o, now)
			require.Equal(t, before, c.o.Task, "Plan changed what it was given")
			require.Equal(t, c.phase, a.Status.Phase)
			require.Equal(t, c.err, a.Status.Error)
			require.Equal(t, c.create, a.Create)
			require.Equal(t, c.stop, a.Stop)
			require.Equal(t, c.again, a.Again)
			if c.check != nil {
				c.check(t, a.Status)
			}
		})
	}
}

// TestPhaseNeverMovesBack: whatever a pod says, in whatever order, validation would accept each step.
func TestPhaseNeverMovesBack(t *testing.T) {
	states := []corev1.ContainerState{{}, {Running: &corev1.ContainerStateRunning{StartedAt: start}}, {Waiting: &corev1.ContainerStateWaiting{Reason: "x", Message: "y"}}, terminated(0, "", ""), terminated(1, "", "")}
	rapid.Check(t, func(t *rapid.T) {
		tk := task("", "")
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			o := Observed{Task: tk, NodeLost: rapid.Bool().Draw(t, "lost")}
			if rapid.Bool().Draw(t, "pod") {
				o.Pod = pod(rapid.SampledFrom([]string{"", "n"}).Draw(t, "node"), rapid.SampledFrom(states).Draw(t, "state"))
			}
			a := Plan(o, now)
			next := tk.DeepCopy()
			next.Status = a.Status
			if a.Create {
				next.Status.PodName = "t"
			}
			require.Empty(t, tasks.ValidateStatusUpdate(next, tk))
			require.Equal(t, a.Status.Phase.Ended(), a.Status.FinishedAt != nil)
			tk = next
		}
	})
}
