package registry

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

func at(gvk schema.GroupVersionKind, namespace, name string) Target {
	r := assembled.Kinds().ByGVK(gvk)
	if !r.Namespaced {
		namespace = ""
	}
	return Target{Resource: r, Namespace: namespace, Name: name}
}

func v1(k, name string) Target { return at(corev1.SchemeGroupVersion.WithKind(k), "work", name) }

func sub(t Target, s string) Target {
	t.Subresource = s
	return t
}

func answer[T runtime.Object](t testing.TB, res Result, err error) T {
	t.Helper()
	require.NoError(t, err)
	o, err := res.Value()
	require.NoError(t, err)
	out, ok := o.(T)
	require.True(t, ok, "answered %T", o)
	return out
}

func put[T runtime.Object](h *env, t Target, obj T) T {
	h.t.Helper()
	t.Name = ""
	res, err := h.Create(h.ctx, t, obj.DeepCopyObject(), metav1.CreateOptions{})
	return answer[T](h.t, res, err)
}

func copied[T runtime.Object](o T) T { return o.DeepCopyObject().(T) }

func configMap(name string, data ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		cm.Data[data[i]] = data[i+1]
	}
	return cm
}

func smallPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

func requireStatus(t testing.TB, err error, code int32, words ...string) *metav1.Status {
	t.Helper()
	require.Error(t, err)
	s, ok := err.(apierrors.APIStatus) //nolint:errorlint // the registry's own promise: no wrapping
	require.True(t, ok, "%T is no Status error: %v", err, err)
	status := s.Status()
	require.Equal(t, code, status.Code, "%v", err)
	for _, w := range words {
		require.Contains(t, err.Error(), w)
	}
	return &status
}
