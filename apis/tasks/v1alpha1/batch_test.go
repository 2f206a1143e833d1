package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestBatchFields checks the bad values of the fields that batch users need, and the fields that only users who may
// create pods can set.
func TestBatchFields(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		change func(*TaskSpec)
		field  string // "" if it is valid
		pods   bool
	}{
		"claim": {func(s *TaskSpec) {
			claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}
			s.Volumes = []TaskVolume{{MountPath: "/a", PersistentVolumeClaim: claim}}
		}, "", true},
		"empty directory": {func(s *TaskSpec) {
			s.Volumes = []TaskVolume{{MountPath: "/a", EmptyDir: &corev1.EmptyDirVolumeSource{}}}
		}, "", false},
		"path of the node": {func(s *TaskSpec) {
			s.Volumes = []TaskVolume{{MountPath: "/a", HostPath: &corev1.HostPathVolumeSource{Path: "/b"}}}
		}, "", true},
		"two sources": {func(s *TaskSpec) {
			s.Volumes = []TaskVolume{{
				MountPath: "/a", EmptyDir: &corev1.EmptyDirVolumeSource{}, HostPath: &corev1.HostPathVolumeSource{Path: "/b"},
			}}
		}, "spec.volumes[0]", true},
		"no source": {func(s *TaskSpec) { s.Volumes = []TaskVolume{{MountPath: "/a"}} }, "spec.volumes[0]", false},
		"taken name": {func(s *TaskSpec) {
			s.Volumes = []TaskVolume{{Name: OutputVolume, MountPath: "/a", EmptyDir: &corev1.EmptyDirVolumeSource{}}}
		}, "spec.volumes[0].name", false},
		"account": {func(s *TaskSpec) { s.ServiceAccountName = "a" }, "", true},
		"sidecar": {func(s *TaskSpec) {
			s.InitContainers = []corev1.Container{{Name: "s", Image: "i", RestartPolicy: &always}}
		}, "", true},
		"many init containers": {
			func(s *TaskSpec) { s.InitContainers = make([]corev1.Container, 17) }, "spec.initContainers", true,
		},
		"relative output": {func(s *TaskSpec) { s.OutputPath = "out" }, "spec.outputPath", false},
		"itself":          {func(s *TaskSpec) { s.After = []TaskAfter{{Name: "t"}} }, "spec.after[0].name", false},
		"after twice": {
			func(s *TaskSpec) { s.After = []TaskAfter{{Name: "a"}, {Name: "a"}} }, "spec.after[1].name", false,
		},
		"after no name": {func(s *TaskSpec) { s.After = []TaskAfter{{Name: "A_"}} }, "spec.after[0].name", false},
		"after somehow": {
			func(s *TaskSpec) { s.After = []TaskAfter{{Name: "a", Condition: "Maybe"}} }, "spec.after[0].condition", false,
		},
		"after many": {func(s *TaskSpec) { s.After = make([]TaskAfter, 33) }, "spec.after", false},
		"every node": {func(s *TaskSpec) { s.Array = &TaskArray{EveryNode: true} }, "", false},
		"of a size":  {func(s *TaskSpec) { s.Array = &TaskArray{EveryNode: true, Size: 3} }, "spec.array.size", false},
		"and of a node": {
			func(s *TaskSpec) { s.Array, s.NodeName = &TaskArray{EveryNode: true}, "n" }, "spec.nodeName", false,
		},
		"no size": {func(s *TaskSpec) { s.Array = &TaskArray{} }, "spec.array.size", false},
	} {
		t.Run(name, func(t *testing.T) {
			task := &Task{Spec: TaskSpec{Image: "i"}}
			task.Name = "t"
			c.change(&task.Spec)
			Default(task)
			errs := Validate(task)
			require.Equal(t, c.field == "", len(errs) == 0, errs)
			if c.field != "" {
				require.Equal(t, c.field, errs[0].Field)
			}
			require.Equal(t, c.pods, NeedsPods(&task.Spec))
		})
	}
}

// TestPodOfVolumes checks the parts of the pod that batch users asked for.
func TestPodOfVolumes(t *testing.T) {
	task := &Task{Spec: TaskSpec{Image: "i", OutputPath: "/out", ServiceAccountName: "a", Volumes: []TaskVolume{
		{MountPath: "/a", EmptyDir: &corev1.EmptyDirVolumeSource{}, Name: "shared", SubPath: "s"},
		{MountPath: "/b", Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
	}}}
	p := Pod(task, &TaskAttempt{Number: 1})
	require.Equal(t, []corev1.VolumeMount{
		{Name: "shared", MountPath: "/a", SubPath: "s"}, {Name: "volume-1", MountPath: "/b", ReadOnly: true},
		{Name: OutputVolume, MountPath: "/out"},
	}, p.Spec.Containers[0].VolumeMounts)
	require.Nil(t, p.Spec.AutomountServiceAccountToken)
	require.Equal(t, "a", p.Spec.ServiceAccountName)
	require.False(t, *Pod(&Task{}, &TaskAttempt{}).Spec.AutomountServiceAccountToken)
}

// TestParameters checks that each run has a value for each parameter of its template, and no other.
func TestParameters(t *testing.T) {
	value := "100"
	s := &TaskSchedule{Spec: TaskScheduleSpec{
		Parameters:   []TaskParameter{{Name: "FILE"}, {Name: "SIZE", Value: &value}},
		TaskTemplate: TaskTemplateSpec{Spec: TaskSpec{Image: "i", Env: []corev1.EnvVar{{Name: "TO", Value: "$(FILE)"}}}},
	}}
	s.Name = "resize"
	DefaultSchedule(s)
	require.Empty(t, ValidateSchedule(s), "a template has no schedule")
	task, err := s.NewTask(map[string]string{"FILE": "a=b"})
	require.NoError(t, err)
	require.Equal(t, []corev1.EnvVar{
		{Name: "FILE", Value: "a=b"}, {Name: "SIZE", Value: "100"}, {Name: "TO", Value: "$(FILE)"},
	}, task.Spec.Env)
	_, err = s.NewTask(nil)
	require.ErrorContains(t, err, "resize needs a value for its parameter FILE")
	_, err = s.NewTask(map[string]string{"FILE": "", "COLOR": ""})
	require.ErrorContains(t, err, "resize has no parameter COLOR: it has FILE, SIZE")

	first := func(errs field.ErrorList) string {
		require.NotEmpty(t, errs)
		return errs[0].Field
	}
	s.Spec.Schedule = "@daily"
	require.Equal(t, "spec.parameters[0].value", first(ValidateSchedule(s)))
	s.Spec.Schedule, s.Spec.Parameters = "", []TaskParameter{{Name: "TO"}}
	require.Equal(t, "spec.parameters[0].name", first(ValidateSchedule(s)))
	s.Spec.Parameters = []TaskParameter{{Name: "A"}, {Name: "A"}}
	require.Equal(t, "spec.parameters[1].name", first(ValidateSchedule(s)))
	s.Spec.Parameters = make([]TaskParameter, maxParameters+1)
	require.Equal(t, "spec.parameters", first(ValidateSchedule(s)))
}
