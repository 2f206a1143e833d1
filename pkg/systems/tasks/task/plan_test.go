package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

var (
	now   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	start = metav1.NewTime(now.Add(-time.Minute))
	end   = metav1.NewTime(now.Add(-time.Second))
)

func ptr[T any](v T) *T { return &v }

// begun returns a task whose first attempt, with the pod "a", is in a phase.
func begun(phase tasks.TaskPhase, change ...func(*tasks.TaskSpec)) *tasks.Task {
	t := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Name: "t", UID: "task", CreationTimestamp: start}, Spec: tasks.TaskSpec{Image: "i"},
	}
	for _, f := range change {
		f(&t.Spec)
	}
	tasks.Default(t)
	if phase != "" {
		a := tasks.TaskAttempt{Number: 1, Phase: phase, Pod: "a", PodUID: "a", CreatedAt: &start}
		if phase != tasks.TaskPending {
			a.Node, a.ScheduledAt = "n", &start
		}
		t.Status.Phase, t.Status.Attempts = phase, []tasks.TaskAttempt{a}
	}
	return t
}

func podOf(uid, node string, s corev1.ContainerState) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              uid,
			UID:               types.UID(uid),
			CreationTimestamp: start,
			Labels:            map[string]string{tasks.LabelAttempt: "1"},
		}, Spec: corev1.PodSpec{NodeName: node},
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "containerd://1", State: s}}
	return p
}

func terminated0(code int32, reason, message string) corev1.ContainerState {
	return corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{
			ExitCode:   code,
			Reason:     reason,
			Message:    message,
			StartedAt:  start,
			FinishedAt: end,
		},
	}
}

func TestPlan(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: start}}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	none := corev1.ContainerState{}
	change := func(p *corev1.Pod, f func(*corev1.Pod)) []*corev1.Pod { f(p); return []*corev1.Pod{p} }
	pods := func(p ...*corev1.Pod) []*corev1.Pod { return p }
	unschedulable := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"},
		}
	}
	deleted := func(grace int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, &grace }
	}
	retries := func(n int32) func(*tasks.TaskSpec) { return func(s *tasks.TaskSpec) { s.Retries = n } }
	cancel := func(s *tasks.TaskSpec) { s.Cancel = true }
	runFor := func(n int64) func(*tasks.TaskSpec) { return func(s *tasks.TaskSpec) { s.RunTimeoutSeconds = &n } }
	start := func(n int64) func(*tasks.TaskSpec) { return func(s *tasks.TaskSpec) { s.StartTimeoutSeconds = &n } }
	wait := func(n int64) func(*tasks.TaskSpec) {
		return func(s *tasks.TaskSpec) { s.ScheduleTimeoutSeconds = &n }
	}
	lately := func(t *tasks.Task) *tasks.Task {
		t.Status.Attempts[0].ScheduledAt = &end
		return t
	}
	done := begun(tasks.TaskCompleted)
	done.Status.FinishedAt = &end
	expired := begun(tasks.TaskCompleted, func(s *tasks.TaskSpec) { s.TTLSecondsAfterFinished = ptr(int32(1)) })
	expired.Status.FinishedAt = &end
	for name, c := range map[string]struct {
		task    *tasks.Task
		pods    []*corev1.Pod
		heard   time.Time // the last heartbeat of node n; zero means now
		gone    bool      // node n is deleted
		phase   tasks.TaskPhase
		reason  string
		err     string
		create  int
		release int
		again   time.Duration
		expired bool
		exit    *int32
	}{
		"new": {task: begun(""), phase: tasks.TaskPending, create: 1},
		"suspended": {
			task: begun("", func(s *tasks.TaskSpec) { s.Suspend = true }), phase: tasks.TaskPending,
			err: "the task is suspended",
		},
		"unrecorded pod": {
			task: begun(""), pods: pods(podOf("b", "n", running)), phase: tasks.TaskRunning, again: 30 * time.Second,
		},
		"waits for a node": {
			task: begun(tasks.TaskPending, wait(90)), pods: change(podOf("a", "", none), unschedulable),
			phase: tasks.TaskPending, err: "0/1 nodes are available", again: 31 * time.Second,
		},
		"no node in time": {
			task: begun(tasks.TaskPending, wait(30), retries(3)), pods: change(podOf("a", "", none), unschedulable),
			phase: tasks.TaskFailed, reason: "NoNode", err: "no feasible node within 30s: 0/1 nodes are available", release: 1,
		},
		"bound": {
			task: begun(tasks.TaskPending), pods: pods(podOf("a", "n", none)), phase: tasks.TaskScheduled,
			again: 30 * time.Second,
		},
		"pull fails": {
			task: lately(begun(tasks.TaskScheduled)), pods: pods(podOf("a", "n", waiting("ErrImagePull", "no such image"))),
			phase: tasks.TaskScheduled, err: "ErrImagePull: no such image", again: 20 * time.Second,
		},
		"pull failed": {
			task: begun(tasks.TaskScheduled), pods: pods(podOf("a", "n", waiting("ImagePullBackOff", "no such image"))),
			phase: tasks.TaskFailed, reason: "ErrImagePull", err: "the image cannot be pulled: no such image", release: 1,
		},
		"pull has time": {
			task: begun(tasks.TaskScheduled, start(90)),
			pods: pods(podOf("a", "n", waiting("ImagePullBackOff", "no such image"))), phase: tasks.TaskScheduled,
			err: "ImagePullBackOff: no such image", again: 30 * time.Second,
		},
		"pull has no time": {
			task: begun(tasks.TaskScheduled, start(1)), pods: pods(podOf("a", "n", waiting("ErrImagePull", "no such image"))),
			phase: tasks.TaskFailed, reason: "ErrImagePull", err: "the image cannot be pulled: no such image", release: 1,
		},
		"image name": {
			task: lately(begun(tasks.TaskScheduled)), pods: pods(podOf("a", "n", waiting("InvalidImageName", "x"))),
			phase: tasks.TaskFailed, reason: "InvalidImageName", err: "InvalidImageName: x", release: 1,
		},
		"no ConfigMap yet": {
			task: lately(begun(tasks.TaskScheduled)), pods: pods(podOf("a", "n", waiting("ContainerCreating", "not found"))),
			phase: tasks.TaskScheduled, err: "NotPrepared: not found", again: 20 * time.Second,
		},
		"no ConfigMap": {
			task: begun(tasks.TaskScheduled),
			pods: pods(podOf("a", "n", waiting("ContainerCreating", "configmap \"x\" not found"))), phase: tasks.TaskFailed,
			reason: "NotPrepared", err: "NotPrepared: configmap \"x\" not found", release: 1,
		},
		"is created": {
			task: begun(tasks.TaskScheduled), pods: pods(podOf("a", "n", waiting("ContainerCreating", ""))),
			phase: tasks.TaskScheduled, again: 30 * time.Second,
		},
		"runs": {
			task: begun(tasks.TaskScheduled), pods: pods(podOf("a", "n", running)), phase: tasks.TaskRunning,
			again: 30 * time.Second,
		},
		"from new to ended": {
			task: begun(""), pods: pods(podOf("a", "n", terminated0(0, "Completed", ""))), phase: tasks.TaskCompleted,
			release: 1, exit: ptr(int32(0)),
		},
		"exit code": {
			task: begun(tasks.TaskRunning), pods: pods(podOf("a", "n", terminated0(3, "Error", ""))), phase: tasks.TaskFailed,
			reason: "Error", err: "exit code 3", release: 1, exit: ptr(int32(3)),
		},
		"memory": {
			task: begun(tasks.TaskRunning), pods: pods(podOf("a", "n", terminated0(137, "OOMKilled", ""))),
			phase: tasks.TaskFailed, reason: "OOMKilled", err: "OOMKilled: exit code 137", release: 1, exit: ptr(int32(137)),
		},
		"no such command": {
			task: begun(tasks.TaskScheduled), pods: pods(podOf("a", "n", terminated0(128, "StartError", "no such file"))),
			phase: tasks.TaskFailed, reason: "StartError", err: "no such file", release: 1, exit: ptr(int32(128)),
		},
		"retry": {
			task: begun(tasks.TaskRunning, retries(1)), pods: pods(podOf("a", "n", terminated0(3, "Error", ""))),
			phase: tasks.TaskPending, err: "attempt 1 failed: exit code 3", release: 1, create: 1,
		},
		"timed out": {
			task: begun(tasks.TaskRunning, runFor(30)), pods: pods(podOf("a", "n", running)), phase: tasks.TaskFailed,
			reason: "RunTimeout", err: "it ran for longer than 30s", release: 1,
		},
		"in time": {
			task: begun(tasks.TaskRunning, runFor(70)), pods: pods(podOf("a", "n", running)), phase: tasks.TaskRunning,
			again: 11 * time.Second,
		},
		"retry waits for pod": {
			task: begun(tasks.TaskRunning, runFor(30), retries(1)), pods: pods(podOf("a", "n", running)),
			phase: tasks.TaskPending, err: "attempt 1 failed: it ran for longer than 30s", release: 1, again: time.Second,
		},
		"evicted": {task: begun(tasks.TaskRunning), pods: change(podOf("a", "n", none), func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "the node was low on memory"}
		}), phase: tasks.TaskFailed, reason: "Evicted", err: "the node was low on memory", release: 1},
		"silent before the start": {
			task: begun(tasks.TaskScheduled), pods: pods(podOf("a", "n", none)), heard: now.Add(-31 * time.Second),
			phase: tasks.TaskFailed, reason: "NodeLost", err: "node n has sent no heartbeat for 30s", release: 1,
		},
		"silent": {
			task: begun(tasks.TaskRunning), pods: pods(podOf("a", "n", running)), heard: now.Add(-31 * time.Second),
			phase: tasks.TaskFailed, reason: "NodeLost", err: "node n has sent no heartbeat for 30s", release: 1,
		},
		"nearly silent": {
			task: begun(tasks.TaskRunning), pods: pods(podOf("a", "n", running)), heard: now.Add(-29 * time.Second),
			phase: tasks.TaskRunning, again: time.Second,
		},
		"node gone": {
			task: begun(tasks.TaskRunning), pods: pods(podOf("a", "n", running)), gone: true, phase: tasks.TaskFailed,
			reason: "NodeLost", err: "node n was deleted", release: 1,
		},
		"runs elsewhere": {
			task: begun(tasks.TaskRunning, func(s *tasks.TaskSpec) { s.Retries, s.BackoffSeconds = 1, ptr(int32(0)) }),
			pods: pods(podOf("a", "n", running)), heard: now.Add(-31 * time.Second), phase: tasks.TaskPending,
			err: "attempt 1 failed: node n has sent no heartbeat for 30s", release: 1, create: 1,
		},
		"ended, then lost": {
			task: begun(tasks.TaskRunning), pods: pods(podOf("a", "n", terminated0(0, "", ""))), gone: true,
			phase: tasks.TaskCompleted, release: 1, exit: ptr(int32(0)),
		},
		"pod vanished": {
			task: begun(tasks.TaskRunning), phase: tasks.TaskFailed, reason: "PodDeleted", err: "its pod a was deleted",
		},
		"another pod": {
			task: begun(tasks.TaskRunning), pods: pods(podOf("b", "n", terminated0(0, "", ""))), phase: tasks.TaskFailed,
			reason: "PodDeleted", err: "its pod a was deleted", release: 1,
		},
		"pod being deleted": {
			task: begun(tasks.TaskRunning), pods: change(podOf("a", "n", running), deleted(30)), phase: tasks.TaskRunning,
			again: 30 * time.Second,
		},
		"pod deleted": {
			task: begun(tasks.TaskRunning), pods: change(podOf("a", "n", terminated0(143, "Error", "")), deleted(30)),
			phase: tasks.TaskFailed, reason: "PodDeleted", err: "its pod was deleted while it ran: exit code 143", release: 1,
			exit: ptr(int32(143)),
		},
		"pod deleted, no report": {
			task: begun(tasks.TaskRunning), pods: change(podOf("a", "n", running), deleted(0)), phase: tasks.TaskFailed,
			reason: "PodDeleted", err: "its pod a was deleted", release: 1,
		},
		"deleted unbound": {
			task: begun(tasks.TaskPending), pods: change(podOf("a", "", none), deleted(0)), phase: tasks.TaskFailed,
			reason: "PodDeleted", err: "its pod a was deleted before a node was chosen", release: 1,
		},
		"cancelled": {
			task: begun(tasks.TaskRunning, cancel, retries(3)), pods: pods(podOf("a", "n", running)), phase: tasks.TaskFailed,
			reason: "Cancelled", err: "the task was cancelled", release: 1,
		},
		"cancelled at once": {
			task: begun("", cancel), phase: tasks.TaskFailed, reason: "Cancelled", err: "the task was cancelled",
		},
		"cancelled too late": {
			task: begun(tasks.TaskRunning, cancel), pods: pods(podOf("a", "n", terminated0(0, "", ""))),
			phase: tasks.TaskCompleted, release: 1, exit: ptr(int32(0)),
		},
		"cancelled after failing": {
			task: begun(tasks.TaskRunning, cancel), pods: pods(podOf("a", "n", terminated0(4, "", ""))), phase: tasks.TaskFailed,
			reason: "Error", err: "exit code 4", release: 1, exit: ptr(int32(4)),
		},
		"cancelled retry": {
			task: begun(tasks.TaskRunning, cancel, retries(1)), pods: pods(podOf("a", "n", terminated0(4, "", ""))),
			phase: tasks.TaskFailed, reason: "Cancelled", err: "the task was cancelled", release: 1, exit: ptr(int32(4)),
		},
		"ended is for ever": {
			task: done, pods: pods(podOf("a", "n", terminated0(3, "", ""))), phase: tasks.TaskCompleted, release: 1,
		},
		"expired": {task: expired, phase: tasks.TaskCompleted, expired: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.heard.IsZero() {
				c.heard = now
			}
			o := Observed{Task: c.task, Pods: c.pods, Heard: map[string]Heartbeat{"n": {c.heard, tasks.DefaultPatience}}}
			if c.gone {
				o.Heard = nil
			}
			before := c.task.DeepCopy()
			a := Plan(o, now)
			require.Equal(t, before, c.task, "Plan changed what it was given")
			require.Equal(t, c.phase, a.Status.Phase)
			require.Equal(t, c.reason, a.Status.Reason)
			require.Equal(t, c.err, a.Status.Error)
			require.Len(t, a.Create, c.create)
			require.Len(t, a.Release, c.release)
			require.Equal(t, c.again, a.Again)
			require.Equal(t, c.expired, a.Expired)
			require.Equal(t, c.exit, a.Status.ExitCode)
			require.Equal(t, c.phase.Ended(), a.Status.FinishedAt != nil)
		})
	}
}

// TestTimeoutsAreNotEarly checks that an attempt that began late in a second still has its whole limit, although the
// API's times are whole seconds.
func TestTimeoutsAreNotEarly(t *testing.T) {
	limit := int64(60)
	limits := func(s *tasks.TaskSpec) {
		s.ScheduleTimeoutSeconds, s.StartTimeoutSeconds, s.RunTimeoutSeconds = &limit, &limit, &limit
	}
	for reason, c := range map[string]struct {
		phase tasks.TaskPhase
		pod   *corev1.Pod
	}{
		tasks.ReasonNoNode: {tasks.TaskPending, podOf("a", "", corev1.ContainerState{})},
		"ErrImagePull": {
			tasks.TaskScheduled,
			podOf("a", "n", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}),
		},
		tasks.ReasonRunTimeout: {
			tasks.TaskRunning, podOf("a", "n", corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: start}}),
		},
	} {
		t.Run(reason, func(t *testing.T) {
			at := start.Add(60*time.Second + 999*time.Millisecond)
			o := Observed{
				Task:  begun(c.phase, limits),
				Pods:  []*corev1.Pod{c.pod},
				Heard: map[string]Heartbeat{"n": {at, tasks.DefaultPatience}},
			}
			a := Plan(o, at)
			require.Equal(t, c.phase, a.Status.Phase)
			require.Equal(t, time.Millisecond, a.Again)
			a = Plan(o, at.Add(time.Millisecond))
			require.Equal(t, tasks.TaskFailed, a.Status.Phase)
			require.Equal(t, reason, a.Status.Reason)
		})
	}
}

func TestBackoff(t *testing.T) {
	s := &tasks.TaskSpec{BackoffSeconds: ptr(int32(10))}
	for number, want := range map[int32]time.Duration{
		1:   10 * time.Second,
		2:   20 * time.Second,
		5:   160 * time.Second,
		6:   5 * time.Minute,
		100: 5 * time.Minute,
	} {
		require.Equal(t, want, Backoff(s, number))
	}
	require.Equal(t, time.Second, Backoff(&tasks.TaskSpec{}, 1))
	require.Equal(t, time.Hour, Backoff(&tasks.TaskSpec{BackoffSeconds: ptr(int32(3600))}, 7))
	require.Zero(t, Backoff(&tasks.TaskSpec{BackoffSeconds: new(int32)}, 50))
}

// TestArray checks that an array keeps to its parallelism, and lists the ended indexes.
func TestArray(t *testing.T) {
	task := begun("", func(s *tasks.TaskSpec) { s.Array = &tasks.TaskArray{Size: 5, Parallelism: ptr(int32(2))} })
	a := Plan(Observed{Task: task}, now)
	require.Len(t, a.Create, 2)
	var pods []*corev1.Pod
	for i := range a.Create {
		p := tasks.Pod(task, &a.Create[i])
		p.UID, p.Spec.NodeName = types.UID(p.Name), "n"
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: terminated0(int32(i), "", "")}}
		pods = append(pods, p)
	}
	o := Observed{Task: task, Pods: pods, Heard: map[string]Heartbeat{"n": {now, tasks.DefaultPatience}}}
	a = Plan(o, now)
	require.Equal(t,
		&tasks.TaskArrayStatus{
			Pending:          3,
			Completed:        1,
			Failed:           1,
			CompletedIndexes: "0",
			FailedIndexes:    "1",
			Nodes:            []string{"n"},
		}, a.Status.Array)
	require.Equal(t, tasks.TaskRunning, a.Status.Phase)
	require.Len(t, a.Create, 2)
	require.EqualValues(t, 2, *a.Create[0].Index)
	task.Spec.Cancel = true
	a = Plan(o, now)
	require.Equal(t, tasks.TaskFailed, a.Status.Phase)
	require.Equal(t, tasks.ReasonCancelled, a.Status.Reason)
}

// TestFailedAttemptsStayListed checks that later attempts of an array do not push attempts of failed indexes out of the
// status, that the task's error has the message of one, and that the list is bounded.
func TestFailedAttemptsStayListed(t *testing.T) {
	array := func(size int32, failed, completed string) *tasks.Task {
		task := begun("", func(s *tasks.TaskSpec) { s.Array = &tasks.TaskArray{Size: size} })
		task.Status.Array = &tasks.TaskArrayStatus{FailedIndexes: failed, CompletedIndexes: completed}
		return task
	}
	attempt := func(i, number int32, phase tasks.TaskPhase) tasks.TaskAttempt {
		return tasks.TaskAttempt{Number: number, Index: &i, Phase: phase, Message: "the image cannot be pulled"}
	}
	task := array(30, "0", "1-29")
	task.Status.Attempts = []tasks.TaskAttempt{
		attempt(0, 1, tasks.TaskFailed), attempt(1, 1, tasks.TaskFailed), attempt(1, 2, tasks.TaskCompleted),
	}
	for i := range int32(28) {
		task.Status.Attempts = append(task.Status.Attempts, attempt(i+2, 1, tasks.TaskCompleted))
	}
	a := Plan(Observed{Task: task}, now)
	require.Len(t, a.Status.Attempts, 1+tasks.MaxAttempts, "a retry has mended index 1")
	require.Equal(t, attempt(0, 1, tasks.TaskFailed), a.Status.Attempts[0])
	require.Equal(t, "1 of 30 indexes failed: 0; index 0: the image cannot be pulled", a.Status.Error)

	task = array(50, "0-49", "")
	for i := range int32(50) {
		task.Status.Attempts = append(task.Status.Attempts, attempt(i, 1, tasks.TaskFailed))
	}
	a = Plan(Observed{Task: task}, now)
	require.Len(t, a.Status.Attempts, tasks.MaxFailed+tasks.MaxAttempts)
	require.Empty(t, tasks.ValidateStatusUpdate(&tasks.Task{Status: a.Status}, array(50, "", "")))
}

// TestNodesOfAnArray checks that the status keeps the nodes with an array's output after it no longer lists the
// attempts, so that these nodes are notified when the task is deleted.
func TestNodesOfAnArray(t *testing.T) {
	task := begun("", func(s *tasks.TaskSpec) { s.Array = &tasks.TaskArray{Size: 100} })
	task.Status.Array = &tasks.TaskArrayStatus{CompletedIndexes: "0-59", Nodes: []string{"first"}}
	task.Status.EndedAttempts = 60
	i := int32(60)
	p := tasks.Pod(task, &tasks.TaskAttempt{Number: 1, Index: &i})
	p.UID, p.Spec.NodeName = "p", "second"
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: terminated0(0, "", "")}}
	a := Plan(Observed{
		Task:  task,
		Pods:  []*corev1.Pod{p},
		Heard: map[string]Heartbeat{"second": {now, tasks.DefaultPatience}},
	}, now)
	require.Equal(t, []string{"first", "second"}, a.Status.Array.Nodes)
	require.Equal(t, []string{"first"}, task.Status.Array.Nodes, "what was observed is left as it was")

	gone := task.DeepCopy()
	gone.Status = a.Status
	gone.Status.Attempts = nil
	var asked []string
	for _, r := range logsOf(gone) {
		asked = append(asked, r.Name)
	}
	require.Equal(t, []string{logs + "task/first", logs + "task/second"}, asked)
}
