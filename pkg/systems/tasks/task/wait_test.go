package task

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

func after(list ...tasks.TaskAfter) func(*tasks.TaskSpec) {
	return func(s *tasks.TaskSpec) { s.After = list }
}

// TestAfter checks when a task starts, waits or fails because of the tasks before it.
func TestAfter(t *testing.T) {
	completed, failed, runs := begun(tasks.TaskCompleted), begun(tasks.TaskFailed), begun(tasks.TaskRunning)
	for name, c := range map[string]struct {
		how    tasks.AfterCondition
		before *tasks.Task
		cycle  string
		create int
		reason string
		err    string
	}{
		"missing":   {before: nil, err: "waits for task b, which does not exist"},
		"runs":      {before: runs, err: "waits for task b to end"},
		"succeeded": {before: completed, create: 1},
		"failed": {
			before: failed, reason: "AfterFailed",
			err: "task b has failed, and this task starts only if it has succeeded",
		},
		"failed, as required": {how: tasks.AfterFailed, before: failed, create: 1},
		"succeeded, but should have failed": {
			how: tasks.AfterFailed, before: completed, reason: "AfterFailed",
			err: "task b has completed, and this task starts only if it has failed",
		},
		"ended by failing":   {how: tasks.AfterEnded, before: failed, create: 1},
		"ended by succeding": {how: tasks.AfterEnded, before: completed, create: 1},
		"cycle":              {before: runs, cycle: "t after b after t", err: "waits for itself: t after b after t"},
	} {
		t.Run(name, func(t *testing.T) {
			task := begun("", after(tasks.TaskAfter{Name: "b", Condition: c.how}))
			o := Observed{Task: task, After: map[string]*tasks.Task{}, Cycle: c.cycle}
			if c.before != nil {
				o.After["b"] = c.before
			}
			a := Plan(o, now)
			require.Len(t, a.Create, c.create)
			require.Equal(t, c.err, a.Status.Error)
			require.Equal(t, c.reason, a.Status.Reason)
			require.Equal(t, c.reason != "", a.Status.Phase == tasks.TaskFailed)
			require.Equal(t, c.create == 1, len(a.Status.After) == 1)
		})
	}
	// A task that has ended as required may be deleted while others still run.
	task := begun("", after(tasks.TaskAfter{Name: "b", Condition: tasks.AfterSucceeded},
		tasks.TaskAfter{Name: "c", Condition: tasks.AfterSucceeded}))
	a := Plan(Observed{Task: task, After: map[string]*tasks.Task{"b": completed, "c": runs}}, now)
	require.Equal(t, []string{"b"}, a.Status.After)
	task.Status = a.Status
	require.Len(t, Plan(Observed{Task: task, After: map[string]*tasks.Task{"c": completed}}, now).Create, 1)
	task.Spec.Cancel = true
	require.Equal(t, tasks.ReasonCancelled, Plan(Observed{Task: task}, now).Status.Reason)
}

// TestQuota checks that attempts beyond a quota wait and are not ended, in an array as well.
func TestQuota(t *testing.T) {
	one := begun("")
	a := Plan(Observed{Task: one, Quota: "exceeded quota: q"}, now)
	require.Equal(t, tasks.TaskPending, a.Status.Phase)
	require.Equal(t, "exceeded quota: q", a.Status.Error)
	one.Status = a.Status
	a = Plan(Observed{Task: one}, now)
	require.Len(t, a.Create, 1, "it is tried again")
	require.Empty(t, a.Status.Error)

	many := begun("", func(s *tasks.TaskSpec) { s.Array = &tasks.TaskArray{Size: 5, Parallelism: ptr(int32(3))} })
	a = Plan(Observed{Task: many, Quota: "exceeded quota: q"}, now)
	require.Zero(t, a.Status.Array.Failed)
	require.Equal(t, "index 0: exceeded quota: q", a.Status.Error)
}

// TestEveryNode checks that the nodes are recorded before a pod is created, and that an index runs on its node.
func TestEveryNode(t *testing.T) {
	task := begun("", func(s *tasks.TaskSpec) { s.Array = &tasks.TaskArray{EveryNode: true} })
	nodes := []string{"m", "n"}
	o := Observed{Task: task, Targets: func() []string { return nodes }}
	a := Plan(o, now)
	require.Empty(t, a.Create)
	require.Equal(t, nodes, a.Status.Array.Targets)
	task.Status = a.Status
	nodes = nil
	a = Plan(o, now)
	require.Len(t, a.Create, 2)
	p := tasks.Pod(task, &a.Create[1])
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	require.Equal(t, []string{"n"}, terms[0].MatchFields[0].Values)
	p.UID, p.CreationTimestamp = "p", start
	o.Pods, o.Deleted = []*corev1.Pod{p}, map[string]bool{"n": true}
	a = Plan(o, now)
	require.Equal(t, "1", a.Status.Array.FailedIndexes)
	require.Equal(t, tasks.ReasonNodeLost, a.Status.Attempts[0].Reason)

	none := begun("", func(s *tasks.TaskSpec) { s.Array = &tasks.TaskArray{EveryNode: true} })
	a = Plan(Observed{Task: none, Targets: func() []string { return nil }}, now)
	require.Equal(t, tasks.TaskPending, a.Status.Phase)
	require.Contains(t, a.Status.Error, "no node has the labels")
	for i := range tasks.MaxTargets + 1 {
		nodes = append(nodes, fmt.Sprint(i))
	}
	a = Plan(Observed{Task: none, Targets: func() []string { return nodes }}, now)
	require.Equal(t, tasks.ReasonTooManyNodes, a.Status.Reason)
}

func TestTargets(t *testing.T) {
	task := begun("", func(s *tasks.TaskSpec) { s.NodeSelector = map[string]string{"a": "b"} })
	node := func(name, label string, taints ...corev1.Taint) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": label}},
			Spec:       corev1.NodeSpec{Taints: taints},
		}
	}
	taint := corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoSchedule}
	nodes := []corev1.Node{node("z", "b"), node("other", "c"), node("tainted", "b", taint),
		node("soft", "b", corev1.Taint{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule})}
	require.Equal(t, []string{"soft", "z"}, targets(task, nodes))
	task.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	require.Equal(t, []string{"soft", "tainted", "z"}, targets(task, nodes))
}

// TestQuotaChanges checks which changes of a quota wake the waiting tasks of its namespace, once.
func TestQuotaChanges(t *testing.T) {
	var w waiting
	a, b := engine.RequestFor("a", "t"), engine.RequestFor("b", "t")
	w.add(a.NamespacedName)
	w.add(b.NamespacedName)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a"}}
	label := quota.DeepCopy()
	label.Labels = map[string]string{"x": "y"}
	require.Empty(t, w.freed(nil, quota), "a new quota frees nothing")
	require.Empty(t, w.freed(quota, label))
	used := quota.DeepCopy()
	used.Status.Used = corev1.ResourceList{}
	used.Status.Hard = corev1.ResourceList{corev1.ResourcePods: {}}
	require.Equal(t, []engine.Request{a}, w.freed(quota, used))
	require.Empty(t, w.freed(quota, nil))
	other := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "b"}}
	require.Equal(t, []engine.Request{b}, w.freed(other, nil))
}

// TestForgedPods checks that a pod that only claims to be an attempt's pod is not one.
func TestForgedPods(t *testing.T) {
	i := int32(3)
	for _, a := range []*tasks.TaskAttempt{{Number: 2}, {Number: 1, Index: &i}} {
		task := begun("")
		p := tasks.Pod(task, a)
		require.True(t, named(task, p))
		p.Name = "other"
		require.False(t, named(task, p))
	}
}

// TestInitContainers checks that an attempt fails with the init container's reason, and does not fail while one runs.
func TestInitContainers(t *testing.T) {
	task := begun(tasks.TaskScheduled)
	p := podOf("a", "n", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}})
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: "first", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: start}}},
	}
	o := Observed{Task: task, Pods: []*corev1.Pod{p}, Heard: map[string]Heartbeat{"n": {now, tasks.DefaultPatience}}}
	require.Equal(t, tasks.TaskScheduled, Plan(o, now).Status.Phase)
	p.Status.InitContainerStatuses[0].State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
	}
	a := Plan(o, now)
	require.Equal(t, "ErrImagePull", a.Status.Reason)
	require.Equal(t, "the image cannot be pulled: init container first: no such image", a.Status.Error)
	p.Status.InitContainerStatuses[0].State = terminated0(3, "Error", "")
	p.Status.Phase = corev1.PodFailed
	a = Plan(o, now)
	require.Equal(t, tasks.TaskFailed, a.Status.Phase)
	require.Equal(t, "init container first failed: exit code 3", a.Status.Error)
}
