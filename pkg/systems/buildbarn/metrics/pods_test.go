package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

// Only pods that a part's workload controls are the part's, whatever labels others have.
func TestOnlyPodsOfTheWorkloadAreBelieved(t *testing.T) {
	object := func(name string, owner client.Object, kind string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name)}
		if owner != nil {
			m.OwnerReferences = []metav1.OwnerReference{
				*metav1.NewControllerRef(owner, schema.GroupVersionKind{Group: "x", Version: "v1", Kind: kind}),
			}
		}
		return m
	}
	s := &buildbarn.BuildbarnScheduler{ObjectMeta: object("s", nil, "")}
	d := &appsv1.Deployment{ObjectMeta: object("s", s, "BuildbarnScheduler")}
	set := &appsv1.ReplicaSet{ObjectMeta: object("s-1", d, "Deployment")}
	other := &appsv1.ReplicaSet{ObjectMeta: object("other", nil, "")}
	pod := func(name string, owner client.Object, kind string) corev1.Pod {
		p := corev1.Pod{ObjectMeta: object(name, owner, kind)}
		p.Labels = buildbarn.Labels(s)
		return p
	}
	forged := set.DeepCopy()
	forged.UID = "another"
	pods := []corev1.Pod{
		pod("tenant", nil, ""),
		pod("of-another-set", other, "ReplicaSet"),
		pod("of-no-set", forged, "ReplicaSet"),
		pod("own", set, "ReplicaSet"),
	}
	c := fake.NewClientBuilder().WithObjects(d, set, other).Build()
	own, err := Own(t.Context(), c, s, pods)
	require.NoError(t, err)
	require.Len(t, own, 1)
	require.Equal(t, "own", own[0].Name)

	storage := &buildbarn.BuildbarnStorage{ObjectMeta: object("s", nil, "")}
	sts := &appsv1.StatefulSet{ObjectMeta: object("s", storage, "BuildbarnStorage")}
	sts.UID = "sts"
	pods = append(pods, pod("s-0", sts, "StatefulSet"))
	c = fake.NewClientBuilder().WithObjects(sts, set).Build()
	own, err = Own(t.Context(), c, storage, pods)
	require.NoError(t, err)
	require.Len(t, own, 1)
	require.Equal(t, "s-0", own[0].Name)

	own, err = Own(t.Context(), fake.NewClientBuilder().WithObjects(set).Build(), s, pods)
	require.NoError(t, err)
	require.Empty(t, own, "it has no workload yet")
}
