package builtin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/registry/rest"
)

// TestClaimTemplatesAreRefused: pods would wait forever for claims that nobody can make.
func TestClaimTemplatesAreRefused(t *testing.T) {
	r := Kinds().ByGVK(appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	require.Implements(t, (*rest.ResetFieldsStrategy)(nil), r.Strategy)
	set := &appsv1.StatefulSet{}
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{}}
	in, err := r.Internal(set)
	require.NoError(t, err)
	require.ErrorContains(t, r.Strategy.Validate(context.Background(), in).ToAggregate(), "spec.volumeClaimTemplates: Forbidden: PersistentVolumeClaims are not supported by this server")
}
