package statefulset

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func setWithClaims(whenDeleted, whenScaled appsv1.PersistentVolumeClaimRetentionPolicyType) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "set"}, Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: whenDeleted, WhenScaled: whenScaled},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{
				{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"tier": "1"}}},
			},
		},
	}
}

// TestClaimsHaveTheOwnersOfTheirPolicy: the garbage collector deletes a claim with the set, with a pod that was
// scaled down, or never.
func TestClaimsHaveTheOwnersOfTheirPolicy(t *testing.T) {
	const retain, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-0", UID: "pod"}}
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "Other", Name: "o", UID: "o", Controller: new(true)}
	plain := metav1.OwnerReference{APIVersion: "v1", Kind: "Other", Name: "o", UID: "o"}
	earlier := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "db-0", UID: "earlier", Controller: new(true)}
	set := setWithClaims(retain, retain)
	ofSet, ofPod := *metav1.NewControllerRef(set, kind), *metav1.NewControllerRef(pod, podKind)
	for name, tt := range map[string]struct {
		deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType
		gone            bool
		have, want      []metav1.OwnerReference
		conflict        bool
	}{
		"kept": {deleted: retain, scaled: retain},
		"kept again": {
			deleted: retain, scaled: retain, have: []metav1.OwnerReference{ofSet, ofPod, plain},
			want: []metav1.OwnerReference{plain},
		},
		"with the set": {
			deleted: remove, scaled: retain, gone: true, want: []metav1.OwnerReference{ofSet},
		},
		"with the pod, which stays": {deleted: retain, scaled: remove},
		"with the pod, which goes": {
			deleted: retain, scaled: remove, gone: true, have: []metav1.OwnerReference{plain},
			want: []metav1.OwnerReference{plain, ofPod},
		},
		"with either, the pod stays": {
			deleted: remove, scaled: remove, have: []metav1.OwnerReference{ofPod}, want: []metav1.OwnerReference{ofSet},
		},
		"with either, the pod goes": {
			deleted: remove, scaled: remove, gone: true, have: []metav1.OwnerReference{ofSet},
			want: []metav1.OwnerReference{ofPod},
		},
		"of another controller": {
			deleted: remove, scaled: remove, have: []metav1.OwnerReference{foreign, ofSet},
			want: []metav1.OwnerReference{foreign}, conflict: true,
		},
		"of another controller, and kept": {
			deleted: retain, scaled: retain, have: []metav1.OwnerReference{foreign}, want: []metav1.OwnerReference{foreign},
		},
		"of an earlier pod": {
			deleted: remove, scaled: remove, have: []metav1.OwnerReference{earlier}, want: []metav1.OwnerReference{earlier},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tt.have}}
			got, conflict := owners(c, setWithClaims(tt.deleted, tt.scaled), pod, tt.gone)
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.conflict, conflict)
		})
	}
	require.True(t,
		stale(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{earlier}}},
			pod))
	require.False(t,
		stale(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{ofPod}}},
			pod))
}

func TestPodsMountTheirClaims(t *testing.T) {
	set := setWithClaims("", "")
	made := claims(set, 7)
	require.Len(t, made, 1)
	require.Equal(t, "data-db-7", made[0].Name)
	require.Equal(t, map[string]string{"tier": "1", "app": "db"}, made[0].Labels)
	require.Equal(t, map[string]string{"tier": "1"}, set.Spec.VolumeClaimTemplates[0].Labels, "the set is shared")

	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data"}, {Name: "other"}}}}
	mountClaims(set, pod, 7)
	require.Len(t, pod.Spec.Volumes, 2)
	require.Equal(t, "data-db-7", pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)
	require.Equal(t, "other", pod.Spec.Volumes[1].Name)

	require.True(t, hasClaim(set, "data-db-7"))
	for _, other := range []string{"data-db-07", "data-db-x", "data-web-7", "log-db-7", "data-db"} {
		require.False(t, hasClaim(set, other), other)
	}
}
