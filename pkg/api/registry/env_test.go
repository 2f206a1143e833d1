package registry

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// env is a registry without plugins, with helpers for the most frequent calls. (This package cannot import
// registrytest.)
type env struct {
	*Registry
	t   testing.TB
	ctx context.Context
}

// build returns an env with the namespace "work".
func build(t testing.TB) *env {
	t.Helper()
	return over(t, store.Config{})
}

func over(t testing.TB, config store.Config) *env {
	t.Helper()
	dir, err := os.MkdirTemp("", "coracle-registry-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	config.Dir = dir
	s, err := store.New(config)
	require.NoError(t, err)
	kinds := kind.NewCatalog(assembled.Kinds())
	c, err := cache.New(cache.Config{Kinds: kinds, Source: s})
	require.NoError(t, err)
	r, err := New(Config{Kinds: kinds, Store: s, Cache: c, Admission: admission.NewChainHandler()})
	require.NoError(t, err)
	runtest.Start(t, s, c)
	h := &env{r, t, asUser(context.Background())}
	for _, ns := range []string{"default", "work"} {
		put(h, at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", ""), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: ns},
		})
	}
	return h
}

func asUser(ctx context.Context) context.Context {
	return request.WithUser(ctx, &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}})
}
