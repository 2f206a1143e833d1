package v1alpha1

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

func TestValidate(t *testing.T) {
	cpu := func(s string) corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse(s)} }
	for name, c := range map[string]struct {
		spec TaskSpec
		want []string
	}{
		"least":          {TaskSpec{Image: "busybox"}, nil},
		"no image":       {TaskSpec{}, []string{"spec.image"}},
		"spaces":         {TaskSpec{Image: " busybox"}, []string{"spec.image"}},
		"env":            {TaskSpec{Image: "a", Env: []corev1.EnvVar{{Name: "A"}, {Name: "A"}, {Name: "B="}, {}}}, []string{"spec.env[1].name", "spec.env[2].name", "spec.env[3].name"}},
		"env source":     {TaskSpec{Image: "a", Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}}}, []string{"spec.env[0].valueFrom"}},
		"request>limit":  {TaskSpec{Image: "a", Resources: &corev1.ResourceRequirements{Limits: cpu("1"), Requests: cpu("2")}}, []string{"spec.resources.requests[cpu]"}},
		"negative limit": {TaskSpec{Image: "a", Resources: &corev1.ResourceRequirements{Limits: cpu("-1")}}, []string{"spec.resources.limits[cpu]"}},
		"node":           {TaskSpec{Image: "a", NodeName: "A_b"}, []string{"spec.nodeName"}},
		"timeout":        {TaskSpec{Image: "a", TimeoutSeconds: new(int64)}, []string{"spec.timeoutSeconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range Validate(&Task{Spec: c.spec}) {
				got = append(got, e.Field)
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestValidateUpdate(t *testing.T) {
	old := &Task{Spec: TaskSpec{Image: "a"}}
	later := old.DeepCopy()
	later.Spec.TimeoutSeconds = new(int64)
	*later.Spec.TimeoutSeconds = 5
	require.Empty(t, ValidateUpdate(later, old))
	old.Status.Phase = TaskCompleted
	require.NotEmpty(t, ValidateUpdate(later, old))
	other := old.DeepCopy()
	other.Spec.Image = "b"
	require.NotEmpty(t, ValidateUpdate(other, old))
}

func TestPhaseMovesOnlyForward(t *testing.T) {
	phases := []TaskPhase{TaskPending, TaskScheduled, TaskRunning, TaskCompleted, TaskFailed}
	rapid.Check(t, func(t *rapid.T) {
		from, to := rapid.SampledFrom(phases).Draw(t, "from"), rapid.SampledFrom(phases).Draw(t, "to")
		errs := ValidateStatusUpdate(&Task{Status: TaskStatus{Phase: to}}, &Task{Status: TaskStatus{Phase: from}})
		allowed := from == to || !from.Ended() && slices.Index(phases, from) < slices.Index(phases, to)
		require.Equal(t, allowed, len(errs) == 0, "%s -> %s: %v", from, to, errs)
	})
}

func TestDefaultAndTable(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	task := &Task{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
	Default(task)
	once := task.DeepCopy()
	Default(task)
	require.Equal(t, once, task)
	require.Equal(t, TaskPending, task.Status.Phase)
	require.Equal(t, []any{"a", "Pending", "", "", "60s", "", ""}, Cells(task, now))
	require.Len(t, Cells(task, now), len(Columns()))

	scheme := runtime.NewScheme()
	require.NoError(t, AddToScheme(scheme))
	require.True(t, scheme.Recognizes(GroupVersion.WithKind("TaskList")))
}
