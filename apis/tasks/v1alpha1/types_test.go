package v1alpha1

import (
	"slices"
	"strings"
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
		"least":    {TaskSpec{Image: "busybox"}, nil},
		"no image": {TaskSpec{}, []string{"spec.image"}},
		"spaces":   {TaskSpec{Image: " busybox"}, []string{"spec.image"}},
		"env": {
			TaskSpec{Image: "a", Env: []corev1.EnvVar{{Name: "A"}, {Name: "A"}, {Name: "B="}, {}}},
			[]string{"spec.env[1].name", "spec.env[2].name", "spec.env[3].name"},
		},
		"env source": {
			TaskSpec{Image: "a", Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}}},
			[]string{"spec.env[0].valueFrom"},
		},
		"request>limit": {
			TaskSpec{Image: "a", Resources: &corev1.ResourceRequirements{Limits: cpu("1"), Requests: cpu("2")}},
			[]string{"spec.resources.requests[cpu]"},
		},
		"negative limit": {
			TaskSpec{Image: "a", Resources: &corev1.ResourceRequirements{Limits: cpu("-1")}},
			[]string{"spec.resources.limits[cpu]"},
		},
		"node": {TaskSpec{Image: "a", NodeName: "A_b"}, []string{"spec.nodeName"}},
		"timeouts": {
			TaskSpec{
				Image:                  "a",
				ScheduleTimeoutSeconds: new(int64),
				RunTimeoutSeconds:      new(int64),
				StartTimeoutSeconds:    new(int64),
				StopTimeoutSeconds:     new(int64),
			},
			[]string{
				"spec.runTimeoutSeconds", "spec.scheduleTimeoutSeconds", "spec.startTimeoutSeconds", "spec.stopTimeoutSeconds",
			},
		},
		"retries": {TaskSpec{Image: "a", Retries: 101}, []string{"spec.retries"}},
		"negative": {
			TaskSpec{Image: "a", Retries: -1, BackoffSeconds: number(-1), TTLSecondsAfterFinished: number(-1)},
			[]string{"spec.retries", "spec.backoffSeconds", "spec.ttlSecondsAfterFinished"},
		},
		"directory": {TaskSpec{Image: "a", WorkingDir: "b"}, []string{"spec.workingDir"}},
		"port": {
			TaskSpec{Image: "a", Ports: []TaskPort{{}}},
			[]string{"spec.ports[0].hostPort", "spec.ports[0].containerPort"},
		},
		"many ports": {TaskSpec{Image: "a", Ports: make([]TaskPort, 33)}, []string{"spec.ports"}},
		"volumes": {
			TaskSpec{Image: "a", Volumes: []TaskVolume{{MountPath: "/a"}, {ConfigMap: &corev1.ConfigMapVolumeSource{}}}},
			[]string{"spec.volumes[0]", "spec.volumes[1].mountPath"},
		},
		"long args": {TaskSpec{Image: "a", Args: []string{strings.Repeat("a", maxText+1)}}, []string{"spec"}},
		"array": {
			TaskSpec{Image: "a", Array: &TaskArray{Size: 1_000_000, Parallelism: number(101)}},
			[]string{"spec.array.size", "spec.array.parallelism"},
		},
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

func number(n int32) *int32 { return &n }

func TestValidateUpdate(t *testing.T) {
	array := func(parallelism int32) *TaskArray { return &TaskArray{Size: 3, Parallelism: &parallelism} }
	seconds := int64(5)
	for name, c := range map[string]struct {
		change        func(*TaskSpec)
		before, after bool // whether the change is valid before and after the task has ended
	}{
		"timeouts": {func(s *TaskSpec) {
			s.ScheduleTimeoutSeconds, s.RunTimeoutSeconds, s.StartTimeoutSeconds = &seconds, &seconds, &seconds
		}, true, false},
		"stop timeout": {func(s *TaskSpec) { s.StopTimeoutSeconds = &seconds }, false, false},
		"retries":      {func(s *TaskSpec) { s.Retries, s.BackoffSeconds = 3, number(2) }, true, false},
		"parallelism":  {func(s *TaskSpec) { s.Array = array(3) }, true, false},
		"size":         {func(s *TaskSpec) { s.Array.Size = 2 }, false, false},
		"no array":     {func(s *TaskSpec) { s.Array = nil }, false, false},
		"image":        {func(s *TaskSpec) { s.Image = "b" }, false, false},
		"ttl":          {func(s *TaskSpec) { s.TTLSecondsAfterFinished = number(0) }, true, true},
		"cancel":       {func(s *TaskSpec) { s.Cancel, s.Suspend = true, true }, true, true},
		"key":          {func(s *TaskSpec) { s.IdempotencyKey = "a" }, false, false},
	} {
		old := &Task{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: TaskSpec{Image: "a", Array: array(2)}}
		later := old.DeepCopy()
		c.change(&later.Spec)
		require.Equal(t, c.before, len(ValidateUpdate(later, old)) == 0, name)
		old.Status.Phase = TaskCompleted
		require.Equal(t, c.after, len(ValidateUpdate(later, old)) == 0, name)
	}
	cancelled := &Task{Spec: TaskSpec{Image: "a", Cancel: true}}
	require.NotEmpty(t, ValidateUpdate(&Task{Spec: TaskSpec{Image: "a"}}, cancelled), "a cancellation cannot be withdrawn")
}

func TestSameRequest(t *testing.T) {
	a := &Task{
		Spec: TaskSpec{Image: "a", IdempotencyKey: "k", Retries: 1, Ports: []TaskPort{{HostPort: 1, ContainerPort: 1}}},
	}
	b := a.DeepCopy()
	Default(b)
	b.Spec.Cancel = true
	require.True(t, SameRequest(a, b))
	b.Spec.Args = []string{"x"}
	require.False(t, SameRequest(a, b))
}

func TestPodOfAnAttempt(t *testing.T) {
	task := &Task{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", UID: "12345678-1234"}, Spec: TaskSpec{
		Image: "i", WorkingDir: "/w", NodeName: "n", StopTimeoutSeconds: new(int64(7)), Array: &TaskArray{Size: 5},
		Ports:   []TaskPort{{HostPort: 80, ContainerPort: 8080}},
		Volumes: []TaskVolume{{MountPath: "/c", ConfigMap: &corev1.ConfigMapVolumeSource{}}},
		Env:     []corev1.EnvVar{{Name: "A", Value: "$(TASK_INDEX)"}},
	}}
	p := Pod(task, &TaskAttempt{Number: 2, Index: number(4)})
	require.Equal(t, "a-12345678-4-2", p.Name)
	require.Equal(t, map[string]string{LabelTask: "a", LabelAttempt: "2", LabelIndex: "4"}, p.Labels)
	require.EqualValues(t, 7, *p.Spec.TerminationGracePeriodSeconds)
	c := p.Spec.Containers[0]
	require.Equal(t,
		[]corev1.EnvVar{{Name: "TASK_NAME", Value: "a"}, {Name: "TASK_ATTEMPT", Value: "2"}, {Name: "TASK_INDEX", Value: "4"},
			{Name: "TASK_COUNT", Value: "5"}, {Name: "A", Value: "$(TASK_INDEX)"}}, c.Env)
	require.Equal(t, "/w", c.WorkingDir)
	require.Equal(t, int32(80), c.Ports[0].HostPort)
	require.Equal(t, p.Spec.Volumes[0].Name, c.VolumeMounts[0].Name)
}

func TestPatience(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":      30 * time.Second,
		"5":     5 * time.Second,
		"1":     30 * time.Second,
		"99999": 30 * time.Second,
		"x":     30 * time.Second,
	} {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{External: "true"}, Annotations: map[string]string{HeartbeatTimeout: text},
			},
		}
		require.Equal(t, want, Patience(n, time.Hour), text)
		n.Labels = nil
		require.Equal(t, time.Hour, Patience(n, time.Hour), "a node with an agent")
	}
}

func TestPhaseMovesOnlyForward(t *testing.T) {
	phases := []TaskPhase{TaskPending, TaskScheduled, TaskRunning, TaskCompleted, TaskFailed}
	rapid.Check(t, func(t *rapid.T) {
		from, to := rapid.SampledFrom(phases).Draw(t, "from"), rapid.SampledFrom(phases).Draw(t, "to")
		ended := rapid.Int32Range(0, 1).Draw(t, "attempts ended")
		errs := ValidateStatusUpdate(&Task{Status: TaskStatus{Phase: to, EndedAttempts: ended}},
			&Task{Status: TaskStatus{Phase: from}})
		allowed := from == to && !(from.Ended() && ended > 0) ||
			!from.Ended() && (slices.Index(phases, from) < slices.Index(phases, to) || ended > 0)
		require.Equal(t, allowed, len(errs) == 0, "%s -> %s: %v", from, to, errs)
	})
}

func TestDefault(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	task := &Task{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
	Default(task)
	once := task.DeepCopy()
	Default(task)
	require.Equal(t, once, task)
	require.Equal(t, TaskPending, task.Status.Phase)

	scheme := runtime.NewScheme()
	require.NoError(t, AddToScheme(scheme))
	require.True(t, scheme.Recognizes(GroupVersion.WithKind("TaskList")))
}
