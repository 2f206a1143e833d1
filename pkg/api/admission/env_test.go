package admission

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env is a registry with helpers for common calls. (registrytest imports this package, so it cannot be used.)
type env struct {
	*registry.Registry
	clients *local.Clients
	t       testing.TB
	ctx     context.Context
}

// build returns an env without plugins, with the namespace "work".
func build(t testing.TB) *env {
	t.Helper()
	s, err := store.New(store.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	kinds := kind.NewCatalog(assembled.Kinds())
	c, err := cache.New(cache.Config{Kinds: kinds, Source: s})
	require.NoError(t, err)
	r, err := registry.New(registry.Config{Kinds: kinds, Store: s, Cache: c, Admission: admission.NewChainHandler()})
	require.NoError(t, err)
	runtest.Start(t, s, c)
	h := &env{r, local.New(r, c, kinds), t,
		request.WithUser(context.Background(), &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}})}
	put(h, at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", ""), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "work"},
	})
	return h
}

func (h *env) install(p Plugins) error { return Install(p, h.Registry, h.clients) }

// secured returns an env with plugins, and with the service account that pods need.
func secured(t testing.TB, p Plugins) *env {
	t.Helper()
	h := build(t)
	require.NoError(t, h.install(p))
	put(h, v1("ServiceAccount", ""), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "work"},
	})
	return h
}

func at(gvk schema.GroupVersionKind, namespace, name string) registry.Target {
	r := assembled.Kinds().ByGVK(gvk)
	if !r.Namespaced {
		namespace = ""
	}
	return registry.Target{Resource: r, Namespace: namespace, Name: name}
}

func v1(k, name string) registry.Target {
	return at(corev1.SchemeGroupVersion.WithKind(k), "work", name)
}

func sub(t registry.Target, s string) registry.Target {
	t.Subresource = s
	return t
}

// answer returns the object of a result.
func answer[T runtime.Object](t testing.TB, res registry.Result, err error) T {
	t.Helper()
	require.NoError(t, err)
	o, err := res.Value()
	require.NoError(t, err)
	out, ok := o.(T)
	require.True(t, ok, "answered %T", o)
	return out
}

func put[T runtime.Object](h *env, t registry.Target, obj T) T {
	h.t.Helper()
	t.Name = ""
	res, err := h.Create(h.ctx, t, obj.DeepCopyObject(), metav1.CreateOptions{})
	return answer[T](h.t, res, err)
}

func (h *env) try(t registry.Target, o runtime.Object) error {
	t.Name = ""
	_, err := h.Create(h.ctx, t, o, metav1.CreateOptions{})
	return err
}

func readAt(h *env, t registry.Target) registry.Result {
	h.t.Helper()
	res, err := h.Get(h.ctx, t, metav1.GetOptions{})
	require.NoError(h.t, err)
	return res
}

func smallPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

func copied[T runtime.Object](o T) T { return o.DeepCopyObject().(T) }

func requireStatus(t testing.TB, err error, code int32, words ...string) {
	t.Helper()
	require.Error(t, err)
	s, ok := err.(apierrors.APIStatus) //nolint:errorlint // the registry's own promise: no wrapping
	require.True(t, ok, "%T is no Status error: %v", err, err)
	require.Equal(t, code, s.Status().Code, "%v", err)
	for _, w := range words {
		require.Contains(t, err.Error(), w)
	}
}

type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) AddWarning(_, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}
