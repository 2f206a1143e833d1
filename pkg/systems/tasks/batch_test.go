package tasks_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func (c *cluster) task(name string, until func(*tasks.Task) bool) *tasks.Task {
	c.T.Helper()
	return controlplane.Until(c, &tasks.TaskList{}, "default", name, until)
}

// TestTasksWaitForQuota checks that attempts beyond a quota wait, with a reason and an event, and run when others end,
// and that no index of an array is lost.
func TestTasksWaitForQuota(t *testing.T) {
	for name, http := range map[string]bool{"in process": false, "over HTTP": true} {
		t.Run(name, func(t *testing.T) {
			c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: http})
			c.Node("a")
			c.Make(&corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}},
			})
			controlplane.Until(c, &corev1.ResourceQuotaList{}, "default", "two", func(q *corev1.ResourceQuota) bool {
				return len(q.Status.Used) > 0
			})
			holds := taskOf("holds", "0")
			holds.Spec.Args, holds.Spec.Array = nil, &tasks.TaskArray{Size: 2}
			c.Make(holds)
			c.task("holds", func(t *tasks.Task) bool { return t.Status.Array != nil && t.Status.Array.Running == 2 })
			many := taskOf("many", "0")
			many.Spec.Array = &tasks.TaskArray{Size: 12}
			c.Make(taskOf("one", "0"), many)
			for _, name := range []string{"one", "many"} {
				task := c.task(name, func(t *tasks.Task) bool { return t.Status.Error != "" })
				require.Equal(t, tasks.TaskPending, task.Status.Phase)
				require.Contains(t, task.Status.Error, "exceeded quota: two")
			}
			event := controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
				return e.Reason == "QuotaExceeded" && e.InvolvedObject.Name == "one"
			})
			require.Contains(t, event.Message, "exceeded quota: two")

			holds = c.task("holds", func(*tasks.Task) bool { return true })
			holds.Spec.Cancel = true
			require.NoError(t, c.Update(c.Ctx, holds))
			require.Equal(t, tasks.TaskCompleted, c.taskEnds("one").Status.Phase)
			ended := c.taskEnds("many")
			require.Equal(t, tasks.TaskCompleted, ended.Status.Phase)
			require.EqualValues(t, 12, ended.Status.Array.Completed)
			require.EqualValues(t, 12, ended.Status.EndedAttempts, "none was tried in vain")
		})
	}
}

// TestTasksAfterOthers checks an order of tasks that are made in the opposite order.
func TestTasksAfterOthers(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	c.Node("a")
	next := func(name, code string, after ...tasks.TaskAfter) {
		task := taskOf(name, code)
		task.Spec.After = after
		c.Make(task)
	}
	next("last", "0", tasks.TaskAfter{Name: "good"}, tasks.TaskAfter{Name: "brief"},
		tasks.TaskAfter{Name: "cleanup", Condition: tasks.AfterEnded})
	next("cleanup", "0", tasks.TaskAfter{Name: "bad", Condition: tasks.AfterFailed})
	next("never", "0", tasks.TaskAfter{Name: "bad"})
	next("x", "0", tasks.TaskAfter{Name: "y"})
	require.Contains(t, c.task("last", func(t *tasks.Task) bool { return t.Status.Error != "" }).Status.Error,
		"waits for task good, which does not exist")
	next("y", "0", tasks.TaskAfter{Name: "x"})
	c.task("y", func(t *tasks.Task) bool { return t.Status.Error == "waits for itself: y after x after y" })
	brief := taskOf("brief", "0")
	brief.Spec.TTLSecondsAfterFinished = new(int32) // it is deleted before "good" exists
	c.Make(brief)
	c.Gone(brief)
	next("good", "0")
	next("bad", "3")
	require.Equal(t, tasks.TaskCompleted, c.taskEnds("last").Status.Phase)
	require.Equal(t, tasks.ReasonAfterFailed, c.taskEnds("never").Status.Reason)
	require.False(t, c.taskEnds("last").Status.StartedAt.Before(c.taskEnds("cleanup").Status.FinishedAt))
}

// TestATaskOnEveryNode checks that each node with the labels runs it once.
func TestATaskOnEveryNode(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn})
	all := taskOf("all", "0")
	all.Spec.Array = &tasks.TaskArray{EveryNode: true}
	c.Make(all)
	c.task("all", func(t *tasks.Task) bool { return t.Status.Error != "" }) // there is no node yet
	for i := range 3 {
		c.Node(fmt.Sprint("n", i))
	}
	again := taskOf("again", "0")
	again.Spec.Array = &tasks.TaskArray{EveryNode: true}
	c.Make(again)
	ended := c.taskEnds("again")
	require.Equal(t, tasks.TaskCompleted, ended.Status.Phase)
	require.Equal(t, []string{"n0", "n1", "n2"}, ended.Status.Array.Targets)
	var ran []string
	for _, a := range ended.Status.Attempts {
		require.Equal(t, ended.Status.Array.Targets[*a.Index], a.Node)
		ran = append(ran, a.Node)
	}
	slices.Sort(ran)
	require.Equal(t, []string{"n0", "n1", "n2"}, ran)
	require.Equal(t, tasks.TaskCompleted, c.taskEnds("all").Status.Phase)
}

// TestOnlyThoseWhoMayCreatePods checks that a user without that right cannot reach by a task or a schedule what only
// pods reach, and can change such an object's other fields.
func TestOnlyThoseWhoMayCreatePods(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelWarn, HTTP: true})
	role := func(name string, rules ...rbacv1.PolicyRule) {
		c.Make(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Rules: rules},
			&rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
			})
	}
	of := rbacv1.PolicyRule{
		APIGroups: []string{tasks.GroupVersion.Group}, Resources: []string{"tasks", "taskschedules"}, Verbs: []string{"*"},
	}
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}}
	role("batch", of)
	role("pods", of, pods)
	client := func(name string) ctrl.Client {
		cl, err := ctrl.New(c.REST(name), ctrl.Options{Scheme: c.Scheme()})
		require.NoError(t, err)
		return cl
	}
	batch, able := client("batch"), client("pods")
	mounts := taskOf("mounts", "0")
	mounts.Spec.Volumes = []tasks.TaskVolume{{MountPath: "/a", HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}}
	schedule := &tasks.TaskSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}}
	schedule.Spec.TaskTemplate.Spec = *taskOf("", "0").Spec.DeepCopy()
	require.NoError(t, batch.Create(c.Ctx, schedule.DeepCopy()))
	err := batch.Create(c.Ctx, mounts.DeepCopy())
	require.True(t, apierrors.IsForbidden(err), err)
	require.ErrorContains(t, err, "are for users who may create pods, and user \"batch\" cannot create pods")
	require.NoError(t, able.Create(c.Ctx, mounts))
	mounts.Spec.Cancel = true
	require.NoError(t, batch.Update(c.Ctx, mounts))

	require.NoError(t, batch.Get(c.Ctx, ctrl.ObjectKeyFromObject(schedule), schedule))
	schedule.Spec.TaskTemplate.Spec.ServiceAccountName = "default"
	err = batch.Update(c.Ctx, schedule.DeepCopy())
	require.True(t, apierrors.IsForbidden(err), err)
	require.NoError(t, able.Update(c.Ctx, schedule))
	schedule.Spec.TaskTemplate.Spec.Image = "mine"
	require.True(t, apierrors.IsForbidden(batch.Update(c.Ctx, schedule.DeepCopy())))
	schedule.Spec.TaskTemplate.Spec.Image = "x"
	schedule.Labels = map[string]string{"a": "b"}
	require.NoError(t, batch.Update(c.Ctx, schedule))
}
