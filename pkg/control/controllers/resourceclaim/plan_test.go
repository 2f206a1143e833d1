package resourceclaim

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPlanPod(t *testing.T) {
	template, name := "gpu", "shared"
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
			{Name: "own", ResourceClaimTemplateName: &template}, {Name: "shared", ResourceClaimName: &name}}},
	}
	create, record, err := PlanPod(p, nil)
	require.NoError(t, err)
	require.Len(t, create, 1)
	require.Equal(t, "own", create[0].Name)
	require.Empty(t, record)

	made := fromTemplate(p, "own", &resourcev1.ResourceClaimTemplate{})
	require.Equal(t, "p-own-", made.GenerateName)
	made.Name = "p-own-x"
	create, record, err = PlanPod(p, []resourcev1.ResourceClaim{*made})
	require.NoError(t, err)
	require.Empty(t, create, "the process may have ended before the pod's status was written")
	require.Equal(t, []Named{{"own", "p-own-x"}}, record)

	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "own", ResourceClaimName: &made.Name}}
	create, record, err = PlanPod(p, []resourcev1.ResourceClaim{*made})
	require.NoError(t, err)
	require.Empty(t, create)
	require.Empty(t, record)

	leaving := *made.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{}
	create, record, err = PlanPod(p, []resourcev1.ResourceClaim{leaving})
	require.NoError(t, err)
	require.Empty(t, create, "it is being deleted, but stays while the pod uses it")
	require.Empty(t, record)

	create, _, err = PlanPod(p, nil)
	require.NoError(t, err)
	require.Len(t, create, 1, "somebody deleted it")

	p.Status.Phase = corev1.PodFailed
	create, _, err = PlanPod(p, nil)
	require.NoError(t, err)
	require.Empty(t, create)

	p.Name = strings.Repeat("a", 200)
	require.LessOrEqual(t, len(fromTemplate(p, "own", &resourcev1.ResourceClaimTemplate{}).GenerateName), longestPrefix)
}

func TestPlanClaim(t *testing.T) {
	pod := func(name string) resourcev1.ResourceClaimConsumerReference {
		return resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID(name)}
	}
	group := resourcev1.ResourceClaimConsumerReference{
		APIGroup: "scheduling.k8s.io",
		Resource: "podgroups",
		Name:     "g",
		UID:      "g",
	}
	uses := func(name string, uid types.UID) (bool, error) {
		require.Equal(t, name, string(uid))
		return strings.HasPrefix(name, "live"), nil
	}
	claim := func(refs ...resourcev1.ResourceClaimConsumerReference) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{resourcev1.Finalizer}}}
		c.Status = resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}, ReservedFor: refs}
		return c
	}
	plan := func(c *resourcev1.ResourceClaim) Release {
		out, err := PlanClaim(c, uses)
		require.NoError(t, err)
		return out
	}
	require.Equal(t, Release{ReservedFor: claim(pod("live")).Status.ReservedFor}, plan(claim(pod("live"))))
	require.Equal(t, Release{Unreserve: true, ReservedFor: claim(pod("live")).Status.ReservedFor},
		plan(claim(pod("dead"), pod("live"))))
	require.Equal(t, Release{Unreserve: true, Deallocate: true, Unprotect: true}, plan(claim(pod("dead"))))
	require.Equal(t, Release{Unreserve: true, ReservedFor: claim(group).Status.ReservedFor},
		plan(claim(group, pod("dead"))), "of a kind that is not known here")
	require.Equal(t, Release{}, plan(claim()), "it may have been allocated before it is reserved")

	deleted := claim()
	deleted.DeletionTimestamp = &metav1.Time{}
	require.Equal(t, Release{Deallocate: true, Unprotect: true}, plan(deleted))

	owned := claim()
	owned.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: "dead", UID: "dead", Controller: new(true)},
	}
	require.Equal(t, Release{Delete: true}, plan(owned))
	owned.OwnerReferences[0].Name, owned.OwnerReferences[0].UID = "live", "live"
	require.Equal(t, Release{}, plan(owned))
}
