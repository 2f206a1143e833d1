package volumebinding

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// use maintains the Unused condition of a bound claim (KEP-5541), with upstream's reasons.
func (s ClaimState) use(now time.Time) Step {
	want := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC",
	}
	if slices.ContainsFunc(s.Pods, func(p *corev1.Pod) bool { return uses(p, s.Claim) }) {
		want.Status, want.Reason, want.Message = corev1.ConditionFalse, "PodUsingPVC", "A pod is currently referencing "+
			"this PVC"
	}
	at := slices.IndexFunc(s.Claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == want.Type
	})
	if at >= 0 && s.Claim.Status.Conditions[at].Status == want.Status {
		return Step{}
	}
	return updateClaimStatus(s.Claim, func(st *corev1.PersistentVolumeClaimStatus) {
		if at < 0 {
			st.Conditions = append(st.Conditions, want)
		} else {
			st.Conditions[at] = want
		}
	})
}

// uses reports whether a pod that is not over names the claim or owns it as an ephemeral volume.
func uses(p *corev1.Pod, c *corev1.PersistentVolumeClaim) bool {
	return !over(p) && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name ||
			v.Ephemeral != nil && ephemeral.VolumeClaimName(p, &v) == c.Name && ephemeral.VolumeIsForPod(p, c) == nil
	})
}

// over reports whether no container of a pod runs any more.
func over(p *corev1.Pod) bool {
	runs := func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil && s.State.Waiting == nil }
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed ||
		p.DeletionTimestamp != nil && !slices.ContainsFunc(p.Status.InitContainerStatuses, runs) &&
			!slices.ContainsFunc(p.Status.ContainerStatuses, runs) &&
			!slices.ContainsFunc(p.Status.EphemeralContainerStatuses, runs)
}
