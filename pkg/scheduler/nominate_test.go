package scheduler_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

func sized(name, cpu string) *corev1.Pod {
	p := pod(name)
	p.Labels = map[string]string{"app": name} // they need not be spread
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	return p
}

func at(name, node string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Name == name && p.Spec.NodeName == node }
}

func unschedulable(name string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return p.Name == name
			}
		}
		return false
	}
}

func TestPodsGoWhereOthersExpectThem(t *testing.T) {
	c := start(t)
	c.node("a", "1")
	defer c.schedule()()
	expected := sized("expected", "600m")
	expected.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/admitted"}}
	require.NoError(t, c.Create(c.ctx, expected))
	expect := func(node string) {
		require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(expected), expected))
		expected.Status.NominatedNodeName = node
		require.NoError(t, c.Status().Update(c.ctx, expected))
	}
	expect("a")
	require.NoError(t, c.Create(c.ctx, sized("small", "300m"))) // after it, the scheduler knows what was written before
	c.wait(1, at("small", "a"))
	require.NoError(t, c.Create(c.ctx, sized("other", "600m")))
	c.wait(1, unschedulable("other"))

	// Now it is expected on another node, and goes there though there is a better one.
	c.node("b", "1")
	c.wait(1, at("other", "b"))
	c.node("c", "8")
	c.node("d", "1")
	expect("d")
	require.NoError(t, c.Create(c.ctx, sized("next", "600m")))
	c.wait(1, at("next", "c"))
	require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(expected), expected))
	expected.Spec.SchedulingGates = nil
	require.NoError(t, c.Update(c.ctx, expected))
	c.wait(1, at("expected", "d"))
}

func TestPlacesAreKeptWhileVolumesAreMade(t *testing.T) {
	c := start(t)
	c.node("a", "1")
	require.NoError(t, c.Create(c.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: "slow.example.com",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: new("slow"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	require.NoError(t, c.Create(c.ctx, claim))
	defer c.schedule()()
	user := sized("user", "600m")
	user.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	require.NoError(t, c.Create(c.ctx, user))
	c.wait(1, func(p *corev1.Pod) bool { return p.Name == "user" && p.Status.NominatedNodeName == "a" })
	require.NoError(t, c.Create(c.ctx, sized("other", "600m")))
	c.wait(1, unschedulable("other"))

	// The provisioner gives up. The pod is free to go to another node.
	c.node("b", "8")
	c.wait(1, at("other", "b"))
	require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(claim), claim))
	require.Equal(t, "a", claim.Annotations[helpers.AnnSelectedNode])
	claim = claim.DeepCopy()
	delete(claim.Annotations, helpers.AnnSelectedNode)
	require.NoError(t, c.Update(c.ctx, claim))
	c.wait(1, func(p *corev1.Pod) bool { return p.Name == "user" && p.Status.NominatedNodeName == "b" })

	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{StorageClassName: "slow",
		AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests, PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "slow.example.com", VolumeHandle: "1"}}}}
	require.NoError(t, c.Create(c.ctx, volume))
	require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(claim), claim))
	claim = claim.DeepCopy()
	claim.Spec.VolumeName = "pv"
	claim.Annotations[helpers.AnnBindCompleted] = "yes"
	require.NoError(t, c.Update(c.ctx, claim))
	claim.Status.Phase = corev1.ClaimBound
	require.NoError(t, c.Status().Update(c.ctx, claim))
	c.wait(1, func(p *corev1.Pod) bool { return at("user", "b")(p) && p.Status.NominatedNodeName == "" })
}
