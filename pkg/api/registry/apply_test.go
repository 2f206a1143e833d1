package registry

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

func by(manager string) metav1.PatchOptions { return metav1.PatchOptions{FieldManager: manager} }

func TestApplyCreatesMergesAndConflicts(t *testing.T) {
	h := build(t)
	target := deployments("d")
	apply := func(o metav1.PatchOptions, body string) (Result, error) {
		return h.Patch(h.ctx, target, types.ApplyPatchType, []byte(body), o)
	}
	const head = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
	const whole = head + `spec:
  replicas: 2
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: i}]}
`
	_, err := apply(metav1.PatchOptions{}, whole)
	requireStatus(t, err, 422, "fieldManager: Required value: is required for apply patch")
	res, err := apply(by("alice"), whole)
	d := answer[*appsv1.Deployment](t, res, err)
	require.True(t, res.Created)
	require.EqualValues(t, 2, *d.Spec.Replicas)
	require.Equal(t, corev1.RestartPolicyAlways, d.Spec.Template.Spec.RestartPolicy)
	require.Equal(t, "alice", d.ManagedFields[0].Manager)
	require.Equal(t, metav1.ManagedFieldsOperationApply, d.ManagedFields[0].Operation)

	res, err = apply(by("alice"), whole)
	require.Equal(t, d.ResourceVersion, answer[*appsv1.Deployment](t, res, err).ResourceVersion,
		"the same again writes nothing")

	const three = head + "spec: {replicas: 3}\n"
	_, err = apply(by("bob"), three)
	s := requireStatus(t, err, 409, `conflict with "alice"`, ".spec.replicas")
	require.Equal(t, metav1.CauseTypeFieldManagerConflict, s.Details.Causes[0].Type)
	forced := by("bob")
	forced.Force = ptr(true)
	res, err = apply(forced, three)
	require.EqualValues(t, 3, *answer[*appsv1.Deployment](t, res, err).Spec.Replicas)

	// A list item that its only manager no longer applies is removed.
	res, err = apply(by("alice"), head+`spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: i}, {name: e, image: j}]}
`)
	require.Len(t, answer[*appsv1.Deployment](t, res, err).Spec.Template.Spec.Containers, 2)
	res, err = apply(by("alice"), head+`spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: i}]}
`)
	d = answer[*appsv1.Deployment](t, res, err)
	require.Len(t, d.Spec.Template.Spec.Containers, 1)
	require.EqualValues(t, 3, *d.Spec.Replicas, "bob's stays")

	// Other writers are recorded too after the first apply.
	res, err = h.Patch(h.ctx, target, types.MergePatchType, []byte(`{"spec":{"minReadySeconds":7}}`), by("carol"))
	d = answer[*appsv1.Deployment](t, res, err)
	var updaters []string
	for _, m := range d.ManagedFields {
		if m.Operation == metav1.ManagedFieldsOperationUpdate {
			updaters = append(updaters, m.Manager)
		}
	}
	require.Equal(t, []string{"carol"}, updaters)

	_, err = apply(by("alice"), head+"spec: {replicsa: 3}\n")
	requireStatus(t, err, 400, ".spec.replicsa: field not declared in schema")
	_, err = apply(by("alice"), "apiVersion: v1\nkind: Pod\nmetadata: {name: d}\n")
	requireStatus(t, err, 400, "invalid object type")
	_, err = apply(by("alice"), "{")
	requireStatus(t, err, 400, "error decoding YAML")
}

func TestApplyToWhatWasThereBefore(t *testing.T) {
	h := build(t)
	put(h, v1("ConfigMap", ""), configMap("a", "k", "1"))
	_, err := h.Patch(h.ctx, v1("ConfigMap", "a"), types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`),
		by("alice"))
	require.NoError(t, err)
	body := []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: '2'}\n")
	_, err = h.Patch(h.ctx, v1("ConfigMap", "a"), types.ApplyPatchType, body, by("alice"))
	requireStatus(t, err, 409, `conflict with "before-first-apply"`)
}

func TestApplyToOurOwnKind(t *testing.T) {
	h := build(t)
	target := at(tasks.GroupVersion.WithKind("Task"), "work", "t")
	body := "apiVersion: " + tasks.GroupVersion.String() +
		"\nkind: Task\nmetadata: {name: t}\nspec: {image: i, args: [a]}\n"
	res, err := h.Patch(h.ctx, target, types.ApplyPatchType, []byte(body), by("alice"))
	require.Equal(t, "i", answer[*tasks.Task](t, res, err).Spec.Image)
	res, err = h.Patch(h.ctx, target, types.ApplyPatchType, []byte(body), by("alice"))
	require.NoError(t, err)
	require.False(t, res.Created)
}
