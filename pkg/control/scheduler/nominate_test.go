package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

func sized(name, cpu string) *corev1.Pod {
	p := pod(name)
	p.Labels = map[string]string{"app": name} // not spread
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
	require.NoError(t, c.Create(c.ctx, sized("small", "300m"))) // after it is scheduled, earlier writes have been seen
	c.wait(1, at("small", "a"))
	require.NoError(t, c.Create(c.ctx, sized("other", "600m")))
	c.wait(1, unschedulable("other"))

	// Nominate it to another node. It runs there, although a better node exists.
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

// The node in a gated pod's status keeps capacity for it until its deletion, also if created later or recreated.
func TestGatedPodsAreExpectedOnNewNodes(t *testing.T) {
	c := start(t)
	defer c.schedule()()
	p := sized("expected", "600m")
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/admitted"}}
	require.NoError(t, c.Create(c.ctx, p))
	p.Status.NominatedNodeName = "a"
	require.NoError(t, c.Status().Update(c.ctx, p))
	require.NoError(t, c.Create(c.ctx, sized("known", "9"))) // after it is scheduled, earlier writes have been seen
	c.wait(1, unschedulable("known"))
	c.node("a", "1")
	require.NoError(t, c.Create(c.ctx, sized("other", "600m")))
	c.wait(1, unschedulable("other"))
	require.NoError(t, c.Delete(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	c.node("a", "1")
	require.NoError(t, c.Create(c.ctx, sized("another", "600m")))
	c.wait(1, unschedulable("another"))
	require.NoError(t, c.Delete(c.ctx, p, ctrl.GracePeriodSeconds(0)))
	c.wait(1, func(p *corev1.Pod) bool { return isBound(p) })
}

// slowly creates a claim whose class provisions volumes for a node. No provisioner runs.
func (c *cluster) slowly(claim string, annotations map[string]string) *corev1.PersistentVolumeClaim {
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "slow"},
		Provisioner:       "slow.example.com",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	require.NoError(c, ctrl.IgnoreAlreadyExists(c.Create(c.ctx, class)))
	made := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim, Annotations: annotations},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("slow"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			}},
	}
	require.NoError(c, c.Create(c.ctx, made))
	return made
}

func (c *cluster) made(claim string) {
	var bound corev1.PersistentVolumeClaim
	require.NoError(c, c.Get(c.ctx, ctrl.ObjectKey{Namespace: "default", Name: claim}, &bound))
	next := bound.DeepCopy()
	require.NoError(c,
		c.Create(c.ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "of-" + claim}, Spec: corev1.PersistentVolumeSpec{StorageClassName: "slow",
				AccessModes: next.Spec.AccessModes, Capacity: next.Spec.Resources.Requests,
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: "slow.example.com", VolumeHandle: claim}}},
		}))
	next.Spec.VolumeName = "of-" + claim
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, helpers.AnnBindCompleted, "yes")
	require.NoError(c, c.Update(c.ctx, next))
	next.Status.Phase = corev1.ClaimBound
	require.NoError(c, c.Status().Update(c.ctx, next))
}

func using(p *corev1.Pod, claim string) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{
		{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			},
		},
	}
	return p
}

func nominated(name, node string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p.Name == name && p.Spec.NodeName == "" && p.Status.NominatedNodeName == node
	}
}

func TestPlacesAreKeptWhileVolumesAreMade(t *testing.T) {
	c := start(t)
	c.node("a", "1")
	claim := c.slowly("c", nil)
	defer c.schedule()()
	require.NoError(t, c.Create(c.ctx, using(sized("user", "600m"), "c")))
	c.wait(1, nominated("user", "a"))
	require.NoError(t, c.Create(c.ctx, sized("other", "600m")))
	c.wait(1, unschedulable("other"))

	// The provisioner gives up. The pod may run on another node.
	c.node("b", "8")
	c.wait(1, at("other", "b"))
	require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(claim), claim))
	require.Equal(t, "a", claim.Annotations[helpers.AnnSelectedNode])
	claim = claim.DeepCopy()
	delete(claim.Annotations, helpers.AnnSelectedNode)
	require.NoError(t, c.Update(c.ctx, claim))
	c.wait(1, nominated("user", "b"))
	c.made("c")
	c.wait(1, func(p *corev1.Pod) bool { return at("user", "b")(p) && p.Status.NominatedNodeName == "" })
}

// A selected node that a user writes into a claim reserves no capacity where the claim's pods do not fit.
func TestClaimsTakeNoPlaces(t *testing.T) {
	c := start(t)
	c.node("a", "1")
	defer c.schedule()()
	c.slowly("c", map[string]string{helpers.AnnSelectedNode: "a"})
	require.NoError(t, c.Create(c.ctx, using(sized("huge", "1000"), "c")))
	c.wait(1, unschedulable("huge"))
	for i := range 3 {
		name := fmt.Sprint("sharing", i) // one of them fits
		require.NoError(t, c.Create(c.ctx, using(sized(name, "600m"), "c")))
		c.wait(1, unschedulable(name))
	}
	require.NoError(t, c.Create(c.ctx, sized("small", "300m")))
	require.NoError(t, c.Create(c.ctx, sized("other", "300m")))
	c.wait(1, at("small", "a"))
	c.wait(1, unschedulable("other"))
}

// All pods of a gang keep their nominations until the last volume is provisioned.
func TestAGangsPlacesAreKeptWhileVolumesAreMade(t *testing.T) {
	c := start(t)
	c.node("a", "2")
	defer c.schedule()()
	require.NoError(t, c.Create(c.ctx, gang("x", 2)))
	for i := range 2 {
		c.slowly(fmt.Sprint("c", i), nil)
		require.NoError(t, c.Create(c.ctx, inGroup(using(sized(fmt.Sprint("x", i), "1"), fmt.Sprint("c", i)), "x", "1")))
	}
	c.wait(2, func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == "a" })
	require.NoError(t, c.Create(c.ctx, sized("other", "1")))
	c.wait(1, unschedulable("other"))
	c.made("c0")
	c.says("x1", `waiting for persistentvolumeclaim "c1" to be provisioned on node "a"`)
	require.NoError(t, c.Create(c.ctx, sized("another", "1")))
	c.wait(1, unschedulable("another"))
	c.made("c1")
	c.wait(2, isBound)
	require.Equal(t, []string{"x0", "x1"}, c.bound())
}

func TestAPlaceIsGivenUpForAnother(t *testing.T) {
	c := start(t)
	require.NoError(t,
		c.Create(c.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}))
	high := func(name, cpu string) *corev1.Pod {
		p := sized(name, cpu)
		p.Spec.PriorityClassName = "high"
		return p
	}
	c.node("a", "2")
	defer c.schedule()()
	require.NoError(t, c.Create(c.ctx, high("stays", "1")))
	c.wait(1, at("stays", "a"))
	c.node("b", "2")
	require.NoError(t, c.Create(c.ctx, sized("goes", "2")))
	c.wait(1, at("goes", "b"))
	p := high("expected", "2")
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/admitted"}}
	require.NoError(t, c.Create(c.ctx, p))
	p.Status.NominatedNodeName = "a"
	require.NoError(t, c.Status().Update(c.ctx, p))
	require.NoError(t, c.Create(c.ctx, sized("waits", "1")))
	c.wait(1, unschedulable("waits"))
	require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(p), p))
	p.Spec.SchedulingGates = nil
	require.NoError(t, c.Update(c.ctx, p))
	c.wait(1, nominated("expected", "b"))
	c.wait(1, at("waits", "a"))
}
