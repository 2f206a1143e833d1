package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestEachEndsWithItsObject checks which errors are retried: all but the ones that say that the object is gone or that
// its namespace is terminating. A joined error is retried if one part is.
func TestEachEndsWithItsObject(t *testing.T) {
	terminating := apierrors.NewForbidden(corev1.Resource("pods"), "q", errors.New("terminating"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	gone, child := apierrors.NewNotFound(corev1.Resource("pods"), "p"), apierrors.NewNotFound(corev1.Resource("pods"), "q")
	other := errors.New("disk full")
	for name, c := range map[string]struct {
		err     error
		retried bool
	}{
		"none":                   {nil, false},
		"the object is gone":     {fmt.Errorf("status: %w", gone), false},
		"namespace terminating":  {terminating, false},
		"both":                   {errors.Join(terminating, gone), false},
		"a child is gone":        {child, true},
		"another error as well":  {errors.Join(terminating, other), true},
		"another error in depth": {errors.Join(errors.Join(other, gone), terminating), true},
		"a wrapped join":         {fmt.Errorf("scale: %w", errors.Join(gone, other)), true},
		"a conflict":             {apierrors.NewConflict(corev1.Resource("pods"), "p", other), true},
	} {
		t.Run(name, func(t *testing.T) {
			called := false
			f := Each(Env{Cache: newStub(aPod()).cache}, func(_ context.Context, p *corev1.Pod) (Result, error) {
				called = true
				require.Equal(t, "p", p.Name)
				return Result{}, c.err
			})
			_, err := f(context.Background(), RequestFor("n", "p"))
			require.True(t, called)
			require.Equal(t, c.retried, err != nil)
			called = false
			_, err = f(context.Background(), RequestFor("n", "missing"))
			require.NoError(t, err)
			require.False(t, called)
		})
	}
}

func TestSetStatusWritesChanges(t *testing.T) {
	ctx := context.Background()
	s := newStub(aPod())
	var p corev1.Pod
	key := client.ObjectKey{Namespace: "n", Name: "p"}
	require.NoError(t, s.Get(ctx, key, &p))
	version := p.ResourceVersion
	require.NoError(t, SetStatus(ctx, s, &p, &p.Status, corev1.PodStatus{}))
	require.NoError(t, s.Get(ctx, key, &p))
	require.Equal(t, version, p.ResourceVersion, "nothing changed")
	require.NoError(t, SetStatus(ctx, s, &p, &p.Status, corev1.PodStatus{Reason: "r"}))
	require.NoError(t, s.Get(ctx, key, &p))
	require.Equal(t, "r", p.Status.Reason)
}
