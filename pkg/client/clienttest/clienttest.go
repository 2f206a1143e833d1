// Package clienttest is the conformance suite of client.Interface, so that a reconciler need not know which
// implementation it uses. It assumes nothing about the cluster except the given namespace.
package clienttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
)

// wait is the timeout for events, which is reached only on failure.
const wait = 20 * time.Second

const indexed = "clienttest-index"

type suite struct {
	c  client.Interface
	ns string
}

// Run checks c in an existing empty namespace. The client's cache must be running, and the client must read its own
// writes.
func Run(t *testing.T, c client.Interface, namespace string) {
	s := suite{c, namespace}
	require.NoError(t,
		c.Cache().IndexField(context.Background(), &corev1.ConfigMap{}, indexed, func(o ctrl.Object) []string {
			if v := o.GetLabels()[indexed]; v != "" {
				return []string{v}
			}
			return nil
		}))
	for _, test := range []struct {
		name string
		run  func(*testing.T, context.Context)
	}{
		{"CreateGetUpdateDelete", s.life},
		{"WhatAWriteAnswersIsTheCallers", s.ownCopy},
		{"ErrorsHaveTheirClass", s.errors},
		{"Patch", s.patch},
		{"Apply", s.apply},
		{"StatusIsApart", s.status},
		{"WritesLeaveTheCacheAlone", s.shallow},
		{"Scale", s.scale},
		{"List", s.list},
		{"Pages", s.pages},
		{"MetadataAlone", s.metadata},
		{"DeleteAllOf", s.deleteAllOf},
		{"Watch", s.watch},
		{"Informer", s.informer},
		{"DryRun", s.dryRun},
		{"Mapping", s.mapping},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*wait)
			defer cancel()
			test.run(t, ctx)
		})
	}
}

func (s suite) configMap(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name, Labels: labels}, Data: map[string]string{"k": "v"},
	}
}

func (s suite) key(name string) ctrl.ObjectKey { return ctrl.ObjectKey{Namespace: s.ns, Name: name} }

func (s suite) life(t *testing.T, ctx context.Context) {
	m := s.configMap("life", nil)
	require.NoError(t, s.c.Create(ctx, m))
	require.NotEmpty(t, m.UID)
	require.NotEmpty(t, m.ResourceVersion)

	var got corev1.ConfigMap
	require.NoError(t, s.c.Get(ctx, s.key("life"), &got))
	require.Equal(t, m.UID, got.UID)
	require.Equal(t, m.ResourceVersion, got.ResourceVersion)

	change := got.DeepCopy()
	change.Data["k"] = "w"
	require.NoError(t, s.c.Update(ctx, change))
	require.NotEqual(t, m.ResourceVersion, change.ResourceVersion)
	var after corev1.ConfigMap
	require.NoError(t, s.c.Get(ctx, s.key("life"), &after))
	require.Equal(t, "w", after.Data["k"], "a client reads its own write")
	require.Equal(t, "v", got.Data["k"], "what was read before is unchanged")

	require.NoError(t, s.c.Delete(ctx, change))
	require.True(t, apierrors.IsNotFound(s.c.Get(ctx, s.key("life"), &after)))

	named := s.configMap("", nil)
	named.GenerateName = "life-"
	require.NoError(t, s.c.Create(ctx, named))
	require.Greater(t, len(named.Name), len("life-"))
	require.NoError(t, s.c.Delete(ctx, named))
}

func (s suite) ownCopy(t *testing.T, ctx context.Context) {
	m := s.configMap("copy", map[string]string{"a": "1"})
	require.NoError(t, s.c.Create(ctx, m))
	m.Data["k"], m.Labels["a"] = "mine", "mine"
	var got corev1.ConfigMap
	require.NoError(t, s.c.Get(ctx, s.key("copy"), &got))
	require.Equal(t, "v", got.Data["k"])
	require.Equal(t, "1", got.Labels["a"])
	sent := s.configMap("copy2", nil)
	kept := sent.Data
	require.NoError(t, s.c.Create(ctx, sent))
	kept["k"] = "late"
	require.NoError(t, s.c.Get(ctx, s.key("copy2"), &got))
	require.Equal(t, "v", got.Data["k"])
	require.NoError(t, s.c.Delete(ctx, m))
	require.NoError(t, s.c.Delete(ctx, sent))
}

func (s suite) errors(t *testing.T, ctx context.Context) {
	m := s.configMap("errors", nil)
	require.True(t, apierrors.IsNotFound(s.c.Get(ctx, s.key("errors"), m.DeepCopy())))
	require.True(t, apierrors.IsNotFound(s.c.Update(ctx, m.DeepCopy())))
	require.True(t, apierrors.IsNotFound(s.c.Delete(ctx, m.DeepCopy())))
	require.NoError(t, s.c.Create(ctx, m))
	require.True(t, apierrors.IsAlreadyExists(s.c.Create(ctx, s.configMap("errors", nil))))
	stale := m.DeepCopy()
	m.Data["k"] = "x"
	require.NoError(t, s.c.Update(ctx, m))
	stale.Data["k"] = "y"
	require.True(t, apierrors.IsConflict(s.c.Update(ctx, stale)))
	err := s.c.Delete(ctx, m, ctrl.Preconditions{UID: ptr(types.UID("other"))})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	bad := s.configMap("errors2", nil)
	bad.Data = map[string]string{"a/b": ""}
	err = s.c.Create(ctx, bad)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.Contains(t, err.Error(), "data[a/b]")
	require.NoError(t, s.c.Delete(ctx, m))
}

func (s suite) patch(t *testing.T, ctx context.Context) {
	m := s.configMap("patch", map[string]string{"a": "1"})
	require.NoError(t, s.c.Create(ctx, m))
	base := m.DeepCopy()
	m.Data["n"] = "2"
	require.NoError(t, s.c.Patch(ctx, m, ctrl.MergeFrom(base)))
	require.Equal(t, map[string]string{"k": "v", "n": "2"}, m.Data)
	require.NoError(t, s.c.Patch(ctx, m, ctrl.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/data/n"}]`))))
	require.Equal(t, map[string]string{"k": "v"}, m.Data)
	require.NoError(t,
		s.c.Patch(ctx, m, ctrl.RawPatch(types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"a":null,"b":"2"}}}`))))
	require.Equal(t, map[string]string{"b": "2"}, m.Labels)
	old := m.DeepCopy()
	m.Data["k"] = "x"
	require.NoError(t, s.c.Update(ctx, m))
	late := old.DeepCopy()
	late.Data["k"] = "y"
	err := s.c.Patch(ctx, late, ctrl.MergeFromWithOptions(old, ctrl.MergeFromWithOptimisticLock{}))
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.NoError(t, s.c.Delete(ctx, m))
}

func (s suite) apply(t *testing.T, ctx context.Context) {
	err := s.c.Apply(ctx, corev1apply.ConfigMap("apply", s.ns).WithData(map[string]string{"a": "1", "b": "2"}),
		ctrl.FieldOwner("one"))
	if apierrors.IsUnsupportedMediaType(err) {
		return // server-side apply is optional
	}
	require.NoError(t, err)
	require.NoError(t,
		s.c.Apply(ctx, corev1apply.ConfigMap("apply", s.ns).WithData(map[string]string{"a": "3"}), ctrl.FieldOwner("one")))
	var got corev1.ConfigMap
	require.NoError(t, s.c.Get(ctx, s.key("apply"), &got))
	require.Equal(t, map[string]string{"a": "3"}, got.Data, "what is no longer applied goes")
	err = s.c.Apply(ctx, corev1apply.ConfigMap("apply", s.ns).WithData(map[string]string{"a": "4"}),
		ctrl.FieldOwner("two"))
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.NoError(t,
		s.c.Apply(ctx, corev1apply.ConfigMap("apply", s.ns).WithData(map[string]string{"a": "4"}), ctrl.FieldOwner("two"),
			ctrl.ForceOwnership))
	require.NoError(t, s.c.Delete(ctx, &got))
}

func (s suite) status(t *testing.T, ctx context.Context) {
	k := &tasks.Task{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "status"}, Spec: tasks.TaskSpec{Image: "hello"}}
	require.NoError(t, s.c.Create(ctx, k))
	k.Status.Phase, k.Spec.Image = tasks.TaskScheduled, "other"
	require.NoError(t, s.c.Status().Update(ctx, k))
	require.Equal(t, tasks.TaskScheduled, k.Status.Phase)
	require.Equal(t, "hello", k.Spec.Image)
	base := k.DeepCopy()
	k.Status.Phase = tasks.TaskRunning
	require.NoError(t, s.c.Status().Patch(ctx, k, ctrl.MergeFrom(base)))
	var got tasks.Task
	require.NoError(t, s.c.Get(ctx, s.key("status"), &got))
	require.Equal(t, tasks.TaskRunning, got.Status.Phase)
	require.NoError(t, s.c.Delete(ctx, k))
}

// shallow writes shallow copies of cached objects, which callers may do, while another goroutine reads the shared
// fields.
func (s suite) shallow(t *testing.T, ctx context.Context) {
	made := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   s.ns,
			Name:        "shallow",
			Labels:      map[string]string{"a": "1"},
			Annotations: map[string]string{"b": "1"},
		},
		Spec: tasks.TaskSpec{Image: "hello"},
	}
	require.NoError(t, s.c.Create(ctx, made))
	for name, write := range map[string]func(*tasks.Task) error{
		"update":        func(k *tasks.Task) error { return s.c.Update(ctx, k) },
		"update status": func(k *tasks.Task) error { return s.c.Status().Update(ctx, k) },
		"patch": func(k *tasks.Task) error {
			return s.c.Patch(ctx, k,
				ctrl.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"2"},"annotations":{"b":"2"}}}`)))
		},
		"patch status": func(k *tasks.Task) error {
			return s.c.Status().Patch(ctx, k, ctrl.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`)))
		},
	} {
		var cached tasks.Task
		require.NoError(t, s.c.Get(ctx, s.key("shallow"), &cached)) // after the earlier writes
		read, next := make(chan *tasks.Task, 1), cached
		go func() { read <- cached.DeepCopy() }()
		require.NoError(t, write(&next), name)
		require.Equal(t, <-read, &cached, name)
	}
	require.NoError(t, s.c.Delete(ctx, made))
}

func (s suite) scale(t *testing.T, ctx context.Context) {
	labels := map[string]string{"app": "scale"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "scale"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}}}
	require.NoError(t, s.c.Create(ctx, d))
	scale := &autoscalingv1.Scale{}
	require.NoError(t, s.c.SubResource("scale").Get(ctx, d, scale))
	require.Zero(t, scale.Spec.Replicas)
	scale.Spec.Replicas = 2
	require.NoError(t, s.c.SubResource("scale").Update(ctx, d, ctrl.WithSubResourceBody(scale)))
	require.Eventually(t, func() bool { // over HTTP the cache learns of it through its watch
		var got appsv1.Deployment
		return s.c.Get(ctx, s.key("scale"), &got) == nil && *got.Spec.Replicas == 2
	}, wait, time.Millisecond)
	require.NoError(t, s.c.Delete(ctx, d))
}

func (s suite) list(t *testing.T, ctx context.Context) {
	for name, labels := range map[string]map[string]string{
		"list-a": {"list": "1", indexed: "x"}, "list-b": {"list": "1", indexed: "y"}, "list-c": {"list": "2", indexed: "x"}} {
		require.NoError(t, s.c.Create(ctx, s.configMap(name, labels)))
	}
	names := func(opts ...ctrl.ListOption) []string {
		var l corev1.ConfigMapList
		require.NoError(t, s.c.List(ctx, &l, opts...))
		out := []string{}
		for _, m := range l.Items {
			out = append(out, m.Name)
		}
		return out
	}
	in := ctrl.InNamespace(s.ns)
	require.ElementsMatch(t, []string{"list-a", "list-b"}, names(in, ctrl.MatchingLabels{"list": "1"}))
	require.ElementsMatch(t, []string{"list-a", "list-b", "list-c"}, names(ctrl.HasLabels{"list"}))
	require.ElementsMatch(t, []string{"list-a", "list-c"}, names(in, ctrl.MatchingFields{indexed: "x"}))
	require.ElementsMatch(t, []string{"list-c"},
		names(in, ctrl.MatchingFields{indexed: "x"}, ctrl.MatchingLabels{"list": "2"}))
	require.Empty(t, names(ctrl.InNamespace("elsewhere"), ctrl.MatchingFields{indexed: "x"}))
	var l corev1.ConfigMapList
	require.Error(t, s.c.List(ctx, &l, in, ctrl.MatchingFields{"data.k": "v"}), "a field that nothing indexes")
	require.NoError(t, s.c.DeleteAllOf(ctx, &corev1.ConfigMap{}, in, ctrl.HasLabels{"list"}))
	require.Eventually(t, func() bool {
		return len(names(in, ctrl.MatchingFields{indexed: "x"})) == 0
	}, wait, time.Millisecond)
}

func (s suite) pages(t *testing.T, ctx context.Context) {
	for _, name := range []string{"page-a", "page-b", "page-c"} {
		require.NoError(t, s.c.Create(ctx, s.configMap(name, map[string]string{"page": ""})))
	}
	var l corev1.ConfigMapList
	require.NoError(t, s.c.List(ctx, &l, ctrl.InNamespace(s.ns), ctrl.HasLabels{"page"}, ctrl.Limit(2)))
	require.Len(t, l.Items, 2)
	require.NoError(t, s.c.DeleteAllOf(ctx, &corev1.ConfigMap{}, ctrl.InNamespace(s.ns), ctrl.HasLabels{"page"}))
}

func (s suite) metadata(t *testing.T, ctx context.Context) {
	m := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "meta", Labels: map[string]string{"meta": "1"}},
	}
	require.NoError(t, s.c.Create(ctx, m))
	gvk := corev1.SchemeGroupVersion.WithKind("Secret")
	p := &metav1.PartialObjectMetadata{}
	p.SetGroupVersionKind(gvk)
	require.Eventually(t, func() bool { // metadata is cached separately, so it is eventually consistent
		return s.c.Get(ctx, s.key("meta"), p) == nil
	}, wait, time.Millisecond)
	require.Equal(t, m.UID, p.UID)
	require.Equal(t, gvk, p.GroupVersionKind())
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(gvk.GroupVersion().WithKind("SecretList"))
	require.NoError(t, s.c.List(ctx, l, ctrl.InNamespace(s.ns), ctrl.HasLabels{"meta"}))
	require.Len(t, l.Items, 1)
	require.NoError(t,
		s.c.Patch(ctx, p, ctrl.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"meta":"2"}}}`))))
	require.Equal(t, "2", p.Labels["meta"])
	require.NoError(t, s.c.Delete(ctx, p))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(s.c.Get(ctx, s.key("meta"), p))
	}, wait, time.Millisecond)
}

func (s suite) deleteAllOf(t *testing.T, ctx context.Context) {
	for _, name := range []string{"all-a", "all-b", "other"} {
		require.NoError(t, s.c.Create(ctx, s.configMap(name, map[string]string{"all": name[:3]})))
	}
	require.NoError(t,
		s.c.DeleteAllOf(ctx, &corev1.ConfigMap{}, ctrl.InNamespace(s.ns), ctrl.MatchingLabels{"all": "all"}))
	require.Eventually(t, func() bool { // over HTTP the cache learns of it through its watch
		var l corev1.ConfigMapList
		return s.c.List(ctx, &l, ctrl.InNamespace(s.ns), ctrl.HasLabels{"all"}) == nil && len(l.Items) == 1 &&
			l.Items[0].Name == "other"
	}, wait, time.Millisecond)
	require.NoError(t, s.c.Delete(ctx, s.configMap("other", nil)))
}

func (s suite) dryRun(t *testing.T, ctx context.Context) {
	m := s.configMap("dry", nil)
	require.NoError(t, s.c.Create(ctx, m, ctrl.DryRunAll))
	require.NotEmpty(t, m.UID)
	require.True(t, apierrors.IsNotFound(s.c.Get(ctx, s.key("dry"), &corev1.ConfigMap{})))
}

func (s suite) mapping(t *testing.T, _ context.Context) {
	gvk, err := s.c.GroupVersionKindFor(&appsv1.Deployment{})
	require.NoError(t, err)
	require.Equal(t, appsv1.SchemeGroupVersion.WithKind("Deployment"), gvk)
	for obj, want := range map[ctrl.Object]bool{&corev1.Pod{}: true, &corev1.Node{}: false, &tasks.Task{}: true} {
		namespaced, err := s.c.IsObjectNamespaced(obj)
		require.NoError(t, err)
		require.Equal(t, want, namespaced)
	}
	m, err := s.c.RESTMapper().RESTMapping(gvk.GroupKind(), "v1")
	require.NoError(t, err)
	require.Equal(t, "deployments", m.Resource.Resource)
}

func ptr[T any](v T) *T { return &v }
