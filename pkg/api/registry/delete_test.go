package registry

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/warning"
)

func ptr[T any](v T) *T { return &v }

func TestDeleteAnswers(t *testing.T) {
	h := build(t)
	cm := put(h, v1("ConfigMap", ""), configMap("a"))
	res, err := h.Delete(h.ctx, v1("ConfigMap", "a"), metav1.DeleteOptions{})
	s := answer[*metav1.Status](t, res, err)
	require.Equal(t, metav1.StatusSuccess, s.Status)
	require.Equal(t, &metav1.StatusDetails{Name: "a", Kind: "configmaps", UID: cm.UID}, s.Details)
	_, err = h.Delete(h.ctx, v1("ConfigMap", "a"), metav1.DeleteOptions{})
	requireStatus(t, err, 404, `configmaps "a" not found`)

	put(h, v1("Pod", ""), smallPod("p"))
	res, err = h.Delete(h.ctx, v1("Pod", "p"), metav1.DeleteOptions{})
	require.Equal(t, "p", answer[*corev1.Pod](t, res, err).Name, "a pod on no node goes at once, and is answered")
	require.False(t, res.Pending)
	require.Nil(t, h.cache.Get(v1("Pod", "").Resource, "work", "p"))
}

func TestDeletePreconditions(t *testing.T) {
	h := build(t)
	cm := put(h, v1("ConfigMap", ""), configMap("a"))
	for name, c := range map[string]struct {
		p     metav1.Preconditions
		words string
	}{
		"uid": {metav1.Preconditions{UID: ptr(types.UID("x"))}, "the UID in the precondition (x) does not match"},
		"resourceVersion": {
			metav1.Preconditions{ResourceVersion: ptr("1")},
			"the ResourceVersion in the precondition (1) does not match",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Delete(h.ctx, v1("ConfigMap", "a"), metav1.DeleteOptions{Preconditions: &c.p})
			requireStatus(t, err, 409, c.words)
		})
	}
	_, err := h.Delete(h.ctx, v1("ConfigMap", "a"), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &cm.UID, ResourceVersion: &cm.ResourceVersion},
	})
	require.NoError(t, err)
	_, err = h.Delete(h.ctx, v1("ConfigMap", "a"), metav1.DeleteOptions{
		PropagationPolicy: ptr(metav1.DeletionPropagation("Sideways")),
	})
	requireStatus(t, err, 422, "propagationPolicy")
}

func TestGracefulDeletion(t *testing.T) {
	h := build(t)
	bound := smallPod("p")
	bound.Spec.NodeName = "n"
	p := put(h, v1("Pod", ""), bound)
	grace := func(s int64) metav1.DeleteOptions { return metav1.DeleteOptions{GracePeriodSeconds: &s} }
	res, err := h.Delete(h.ctx, v1("Pod", "p"), metav1.DeleteOptions{})
	d := answer[*corev1.Pod](t, res, err)
	require.True(t, res.Pending)
	require.NotNil(t, d.DeletionTimestamp)
	require.EqualValues(t, 30, *d.DeletionGracePeriodSeconds)
	require.Equal(t, p.Generation+1, d.Generation)

	res, err = h.Delete(h.ctx, v1("Pod", "p"), grace(60))
	require.Equal(t, d.ResourceVersion, answer[*corev1.Pod](t, res, err).ResourceVersion, "grace cannot be lengthened")
	res, err = h.Delete(h.ctx, v1("Pod", "p"), grace(5))
	d = answer[*corev1.Pod](t, res, err)
	require.EqualValues(t, 5, *d.DeletionGracePeriodSeconds)
	_, err = h.Create(h.ctx, v1("Pod", ""), smallPod("p"), metav1.CreateOptions{})
	requireStatus(t, err, 409, "object is being deleted: pods \"p\" already exists")
	res, err = h.Delete(h.ctx, v1("Pod", "p"), grace(0))
	require.NoError(t, err)
	require.False(t, res.Pending)
	_, err = h.Get(h.ctx, v1("Pod", "p"), metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// Every propagation policy, with every combination of existing finalizers and kinds' defaults: the expected finalizers,
// or none if the object is deleted at once.
func TestPropagationAndFinalizers(t *testing.T) {
	h := build(t)
	const orphan, foreground, own = metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, "example.com/f"
	background := ptr(metav1.DeletePropagationBackground)
	for i, c := range []struct {
		have []string
		o    metav1.DeleteOptions
		want []string // nil if the object is deleted
	}{
		{nil, metav1.DeleteOptions{}, nil},
		{nil, metav1.DeleteOptions{PropagationPolicy: background}, nil},
		{nil, metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationOrphan)}, []string{orphan}},
		{nil, metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationForeground)}, []string{foreground}},
		{nil, metav1.DeleteOptions{OrphanDependents: ptr(true)}, []string{orphan}},
		{nil, metav1.DeleteOptions{OrphanDependents: ptr(false)}, nil},
		{[]string{own}, metav1.DeleteOptions{}, []string{own}},
		{
			[]string{own},
			metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationForeground)},
			[]string{own, foreground},
		},
		{[]string{orphan}, metav1.DeleteOptions{}, []string{orphan}},
		{[]string{orphan}, metav1.DeleteOptions{PropagationPolicy: background}, nil},
		{[]string{foreground}, metav1.DeleteOptions{}, []string{foreground}},
		{
			[]string{foreground},
			metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationOrphan)},
			[]string{orphan},
		},
	} {
		name := fmt.Sprintf("c%d", i)
		cm := configMap(name)
		cm.Finalizers = c.have
		put(h, v1("ConfigMap", ""), cm)
		res, err := h.Delete(h.ctx, v1("ConfigMap", name), c.o)
		require.NoError(t, err)
		require.Equal(t, c.want != nil, res.Pending, "case %d", i)
		e := h.cache.Get(v1("ConfigMap", "").Resource, "work", name)
		if c.want == nil {
			require.Nil(t, e, "case %d", i)
			continue
		}
		require.Equal(t, c.want, e.Object.GetFinalizers(), "case %d", i)
		require.NotNil(t, e.Object.GetDeletionTimestamp())
		require.Zero(t, *e.Object.GetDeletionGracePeriodSeconds())

		_, err = h.Patch(h.ctx, v1("ConfigMap", name), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":["example.com/new"]}}`), metav1.PatchOptions{})
		requireStatus(t, err, 422,
			"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted")
		_, err = h.Patch(h.ctx, v1("ConfigMap", name), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		require.NoError(t, err)
		require.Nil(t, h.cache.Get(v1("ConfigMap", "").Resource, "work", name), "the last finalizer gone, so is the object")
	}
}

// A deletion without a finalizer removes it in the same write. Other finalizers stay, and so do the finalizers of
// objects whose deletion has already begun.
func TestDeletionWithoutAFinalizer(t *testing.T) {
	h := build(t)
	const own, other = "example.com/own", "example.com/other"
	for name, c := range map[string]struct{ have, want []string }{
		"alone":     {[]string{own}, nil},
		"of others": {[]string{other, own}, []string{other}},
		"not there": {[]string{other}, []string{other}},
		"none":      {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cm := configMap("c")
			cm.Finalizers = c.have
			made := put(h, v1("ConfigMap", ""), cm)
			stale := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr(types.UID("other"))}}
			_, err := h.DeleteWithout(h.ctx, v1("ConfigMap", "c"), stale, own)
			require.True(t, apierrors.IsConflict(err), "%v", err)
			res, err := h.DeleteWithout(h.ctx, v1("ConfigMap", "c"),
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID}}, own)
			require.NoError(t, err)
			require.Equal(t, c.want != nil, res.Pending)
			e := h.cache.Get(v1("ConfigMap", "").Resource, "work", "c")
			if c.want == nil {
				require.Nil(t, e)
				return
			}
			require.Equal(t, c.want, e.Object.GetFinalizers())
			_, err = h.DeleteWithout(h.ctx, v1("ConfigMap", "c"), metav1.DeleteOptions{}, other)
			require.NoError(t, err)
			require.Equal(t, c.want, h.cache.Get(v1("ConfigMap", "").Resource, "work", "c").Object.GetFinalizers())
			_, err = h.Patch(h.ctx, v1("ConfigMap", "c"), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
			require.NoError(t, err)
		})
	}
}

func TestDeletionWithoutAFinalizerBeginsWithAnother(t *testing.T) {
	h := build(t)
	const own, other, late = "example.com/own", "example.com/other", "example.com/late"
	target := v1("ConfigMap", "c")
	begins := *target.Resource
	begins.BeginDelete = func(o runtime.Object) {
		m := o.(metav1.Object)
		m.SetFinalizers(append(m.GetFinalizers(), late))
	}
	target.Resource = &begins
	cm := configMap("c")
	cm.Finalizers = []string{own, other}
	put(h, v1("ConfigMap", ""), cm)
	_, err := h.DeleteWithout(h.ctx, target, metav1.DeleteOptions{}, own)
	require.NoError(t, err)
	require.Equal(t, []string{other, late}, h.cache.Get(v1("ConfigMap", "").Resource, "work", "c").Object.GetFinalizers())
}

func TestNamespaceDeletion(t *testing.T) {
	h := build(t)
	ns := v1("Namespace", "work")
	_, err := h.Delete(h.ctx, v1("Namespace", "default"), metav1.DeleteOptions{})
	requireStatus(t, err, 403, "this namespace may not be deleted")

	res, err := h.Delete(h.ctx, ns, metav1.DeleteOptions{})
	n := answer[*corev1.Namespace](t, res, err)
	require.True(t, res.Pending)
	require.Equal(t, corev1.NamespaceTerminating, n.Status.Phase)
	require.NotNil(t, n.DeletionTimestamp)
	require.Equal(t, []corev1.FinalizerName{corev1.FinalizerKubernetes}, n.Spec.Finalizers)

	_, err = h.Create(h.ctx, v1("ConfigMap", ""), configMap("a"), metav1.CreateOptions{})
	s := requireStatus(t, err, 403,
		`configmaps "a" is forbidden: unable to create new content in namespace work because it is being terminated`)
	require.Equal(t, corev1.NamespaceTerminatingCause, s.Details.Causes[0].Type)

	again, err := h.Delete(h.ctx, ns, metav1.DeleteOptions{})
	require.Equal(t, n.ResourceVersion, answer[*corev1.Namespace](t, again, err).ResourceVersion)
	n = copied(n)
	n.Spec.Finalizers = nil
	_, err = h.Update(h.ctx, sub(ns, "finalize"), n, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Nil(t, h.cache.Get(ns.Resource, "", "work"))
}

func TestDeleteCollection(t *testing.T) {
	h := build(t)
	for i := range 20 {
		cm := configMap(fmt.Sprintf("c%d", i))
		cm.Labels = map[string]string{"odd": fmt.Sprint(i % 2)}
		put(h, v1("ConfigMap", ""), cm)
	}
	l, err := h.DeleteCollection(h.ctx, v1("ConfigMap", ""), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "odd=1"})
	require.NoError(t, err)
	require.Len(t, l.Entries, 10)
	l, err = h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, l.Entries, 10)
	_, err = h.DeleteCollection(h.ctx, v1("ConfigMap", ""), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "odd in ("})
	requireStatus(t, err, 400)
	_, err = h.DeleteCollection(h.ctx, v1("ConfigMap", ""), metav1.DeleteOptions{DryRun: []string{"All"}},
		metav1.ListOptions{})
	require.NoError(t, err)
	l, err = h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, l.Entries, 10)
}

func TestDeletingAJobWarns(t *testing.T) {
	h := build(t)
	job := at(batchv1.SchemeGroupVersion.WithKind("Job"), "work", "j")
	for _, policy := range []*metav1.DeletionPropagation{nil, ptr(metav1.DeletePropagationBackground)} {
		put(h, job, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "j"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Containers: []corev1.Container{
						{Name: "c", Image: "x", TerminationMessagePolicy: "File", ImagePullPolicy: "Always"},
					},
				},
			}},
		})
		w := &warnings{}
		_, err := h.Delete(warning.WithWarningRecorder(h.ctx, w), job, metav1.DeleteOptions{PropagationPolicy: policy})
		require.NoError(t, err)
		if policy != nil {
			require.Empty(t, w.text)
			break
		}
		require.Len(t, w.text, 1)
		require.Contains(t, w.text[0], "child pods are preserved by default when jobs are deleted")
		res, err := h.Get(h.ctx, job, metav1.GetOptions{})
		require.Contains(t, answer[*batchv1.Job](t, res, err).Finalizers, metav1.FinalizerOrphanDependents)
		_, err = h.Patch(h.ctx, job, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
}
