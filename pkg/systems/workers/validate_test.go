package workers

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// TestValidateTemplate checks that a template is refused if its pods would be, or if it contradicts the worker.
func TestValidateTemplate(t *testing.T) {
	program := func(c corev1.Container) corev1.PodSpec {
		c.Name = workers.ContainerName
		return corev1.PodSpec{Containers: []corev1.Container{c}}
	}
	beside := func(c corev1.Container) corev1.PodSpec {
		c.Name, c.Image = "beside", "i"
		return corev1.PodSpec{Containers: []corev1.Container{c}}
	}
	some := corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
	mounts := []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	for want, s := range map[string]corev1.PodSpec{
		"spec.template.spec.restartPolicy":              {RestartPolicy: corev1.RestartPolicyNever},
		"spec.template.spec.hostNetwork":                {HostNetwork: true},
		"spec.template.spec.serviceAccountName":         {ServiceAccountName: "a"},
		"spec.template.spec.containers[0].image":        program(corev1.Container{Image: "i"}),
		"spec.template.spec.containers[0].command":      program(corev1.Container{Command: []string{"a"}}),
		"spec.template.spec.containers[0].args":         program(corev1.Container{Args: []string{"a"}}),
		"spec.template.spec.containers[0].env":          program(corev1.Container{Env: []corev1.EnvVar{{Name: "A"}}}),
		"spec.template.spec.containers[0].resources":    program(corev1.Container{Resources: some}),
		"spec.template.spec.containers[0].ports":        beside(corev1.Container{Ports: []corev1.ContainerPort{{}}}),
		"spec.template.spec.volumes[0].name":            {Volumes: []corev1.Volume{{}}},
		"spec.template.spec.containers[0].volumeMounts": program(corev1.Container{VolumeMounts: mounts}),
		"": {
			NodeSelector: map[string]string{"a": "b"},
			Containers:   []corev1.Container{{Name: "beside", Image: "i"}},
		},
	} {
		w := &workers.Worker{
			ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns"},
			Spec:       workers.WorkerSpec{Image: "i", Template: &corev1.PodTemplateSpec{Spec: s}},
		}
		workers.Default(w)
		errs := validate(w)
		if want == "" {
			require.Empty(t, errs)
			continue
		}
		require.NotEmpty(t, errs, want)
		require.Contains(t, errs[0].Field, want)
	}
}

// TestValidateTriggers checks which schedules and objects are refused.
func TestValidateTriggers(t *testing.T) {
	objects := func(version, kind, fields string, changes ...workers.ObjectChange) *workers.ObjectsTrigger {
		return &workers.ObjectsTrigger{APIVersion: version, Kind: kind, FieldSelector: fields, Changes: changes}
	}
	selecting := func(label string, values []string) *workers.ObjectsTrigger {
		o := objects("v1", "Pod", "")
		o.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{label: "x"}}
		if values != nil {
			o.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "In", Values: values}}
		}
		return o
	}
	late := func(n int64) *int64 { return &n }
	for want, c := range map[string]workers.WorkerTrigger{
		"schedule: Required value":                        {},
		"has a schedule, objects or nats, not several":    {Schedule: "@daily", Objects: objects("v1", "Pod", "")},
		"[0]: Forbidden: has a schedule, objects or nats": {Data: "x", Objects: objects("v1", "Pod", "")},
		"objects or nats, not several of them": {
			NATS: &workers.NATSTrigger{Subject: "n.a"}, Objects: objects("v1", "Pod", ""),
		},
		"objects.apiVersion: Invalid value: \"\"":        {Objects: objects("", "Pod", "")},
		"objects.apiVersion: Invalid value: \"a/b/c\"":   {Objects: objects("a/b/c", "Pod", "")},
		"objects.kind: Invalid value: \"\"":              {Objects: objects("v1", "", "")},
		"which would send the next message":              {Objects: objects("workers.coracle.dev/v1alpha1", "Worker", "")},
		"objects.fieldSelector: Invalid value: \"x\"":    {Objects: objects("v1", "Pod", "x")},
		"objects.fieldSelector: Too long":                {Objects: objects("v1", "Pod", strings.Repeat("x", 1025))},
		"objects.selector.matchLabels: Invalid value":    {Objects: selecting("a b", nil)},
		"objects.selector: Too many: 67":                 {Objects: selecting("a", make([]string, 65))},
		"objects.changes[1]: Unsupported value":          {Objects: objects("v1", "Pod", "", "Added", "ADDED")},
		"objects.changes: Too many":                      {Objects: objects("v1", "Pod", "", "", "", "", "")},
		"schedule: Invalid value: \"x\": expected":       {Schedule: "x"},
		"expected exactly 5 fields, found 6":             {Schedule: "0 0 * * * *"},
		"no time matches it":                             {Schedule: "0 0 30 2 *"},
		"cannot have a time zone: use timeZone":          {Schedule: "TZ=UTC 0 0 * * *"},
		"needs times, not an interval":                   {Schedule: "@every 1s"},
		"schedule: Invalid value: \"0 0 1 1 */0\":":      {Schedule: "0 0 1 1 */0"},
		"has at most 256 bytes":                          {Schedule: strings.Repeat("0,", 200) + "0 * * * *"},
		"not the name of a time zone":                    {Schedule: "@daily", TimeZone: "Europe/Nowhere"},
		"timeZone: Invalid value: \"LOCAL\"":             {Schedule: "@daily", TimeZone: "LOCAL"},
		"timeZone: Invalid value: \"../etc/passwd\"":     {Schedule: "@daily", TimeZone: "../etc/passwd"},
		"startingDeadlineSeconds: Invalid value: 0":      {Schedule: "@daily", StartingDeadlineSeconds: late(0)},
		"startingDeadlineSeconds: Invalid value: 86401":  {Schedule: "@daily", StartingDeadlineSeconds: late(86401)},
		"spec.triggers: Too long: may not be more than ": {Schedule: "@daily", Data: strings.Repeat("x", 64<<10+1)},
		"": {Schedule: "*/5 0-4 * JAN-MAR MON", TimeZone: "Europe/Berlin", Data: strings.Repeat("x", 64<<10)},
	} {
		w := &workers.Worker{
			ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns"},
			Spec:       workers.WorkerSpec{Image: "i", Triggers: []workers.WorkerTrigger{c}},
		}
		workers.Default(w)
		errs := validate(w)
		if want == "" {
			require.Empty(t, errs)
			w.Spec.Triggers = []workers.WorkerTrigger{{Objects: selecting("app", []string{"a", "b"})}}
			workers.Default(w)
			require.Empty(t, validate(w))
			w.Spec.Triggers = slices.Repeat([]workers.WorkerTrigger{{Schedule: "@daily"}}, 17)
			require.ErrorContains(t, validate(w).ToAggregate(), "Too many")
			continue
		}
		require.Len(t, errs, 1, want)
		require.Contains(t, errs[0].Error(), want)
	}
}
