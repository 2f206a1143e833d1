package ephemeral

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{
				Name: "scratch",
				VolumeSource: corev1.VolumeSource{
					Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
						ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}},
				},
			},
			{Name: "other", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}},
	}
	var there *corev1.PersistentVolumeClaim
	have := func(name string) *corev1.PersistentVolumeClaim {
		require.Equal(t, "p-scratch", name)
		return there
	}
	create, err := Plan(p, have)
	require.NoError(t, err)
	require.Len(t, create, 1)
	require.Equal(t, "p-scratch", create[0].Name)
	require.Equal(t, map[string]string{"a": "b"}, create[0].Labels)
	require.True(t, metav1.IsControlledBy(create[0], p))

	there = create[0]
	create, err = Plan(p, have)
	require.NoError(t, err)
	require.Empty(t, create)

	there.OwnerReferences = nil
	create, err = Plan(p, have)
	require.ErrorContains(t, err, "PVC ns/p-scratch was not created for pod ns/p (pod is not owner)")
	require.Empty(t, create)

	p.Status.Phase = corev1.PodSucceeded
	create, err = Plan(p, have)
	require.NoError(t, err)
	require.Empty(t, create)
}
