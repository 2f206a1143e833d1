package controllers_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

const gpu corev1.ResourceName = "example.com/gpu"

func extendedPod(name string, of corev1.ResourceName, n string) *corev1.Pod {
	return anywhere(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{of: resource.MustParse(n)}}}}},
	})
}

// anywhere makes a pod tolerate the taints of nodes that have just started or, on a busy machine, miss heartbeats.
func anywhere(p *corev1.Pod) *corev1.Pod {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return p
}

// gpuClass returns a device class that serves an extended resource with all devices of the test's driver.
func gpuClass() *resourcev1.DeviceClass {
	name := string(gpu)
	return &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &name, Selectors: []resourcev1.DeviceSelector{
			{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`}}}},
	}
}

func (c *cluster) boundPod(name string) *corev1.Pod {
	c.T.Helper()
	return controlplane.Until(c, &corev1.PodList{}, "default", name, func(p *corev1.Pod) bool {
		return p.Spec.NodeName != ""
	})
}

func (c *cluster) waits(name, text string) {
	c.T.Helper()
	controlplane.Until(c, &corev1.PodList{}, "default", name, func(p *corev1.Pod) bool {
		return len(p.Status.Conditions) > 0 && strings.Contains(p.Status.Conditions[0].Message, text)
	})
}

// TestExtendedResourcesByDevices: where no device plugin serves an extended resource, a pod that requests it gets
// devices of the class that serves it. Upstream's roles suffice.
func TestExtendedResourcesByDevices(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelError, HTTP: true})
	c.Node("n1")
	c.Make(extendedPod("early", gpu, "1"))
	c.waits("early", "Insufficient example.com/gpu")
	c.Make(deviceSlice("n1", resourcev1.Device{Name: "gpu-0"}, resourcev1.Device{Name: "gpu-1"},
		resourcev1.Device{Name: "gpu-2"}), gpuClass())
	early := c.boundPod("early") // schedulable since the class exists
	s := early.Status.ExtendedResourceClaimStatus
	require.NotNil(t, s, "it is written before the pod is bound")
	require.Equal(t,
		[]corev1.ContainerExtendedResourceRequest{
			{ContainerName: "c", ResourceName: string(gpu), RequestName: "container-0-request-0"},
		}, s.RequestMappings)
	var claim resourcev1.ResourceClaim
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: s.ResourceClaimName}, &claim))
	require.True(t, strings.HasPrefix(claim.Name, "early-extended-resources-"), claim.Name)
	require.True(t, metav1.IsControlledBy(&claim, early))
	require.Equal(t, "true", claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation])
	require.Equal(t, early.UID, claim.Status.ReservedFor[0].UID)
	require.Equal(t, "gpu.example.com", claim.Status.Allocation.Devices.Results[0].Driver)

	// The class is also a resource under its own name. Two of three devices are left, so only one of the two pods fits.
	c.Make(extendedPod("two", "deviceclass.resource.kubernetes.io/gpu", "2"))
	two := c.boundPod("two")
	require.NoError(t,
		c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: two.Status.ExtendedResourceClaimStatus.ResourceClaimName},
			&claim))
	require.Len(t, claim.Status.Allocation.Devices.Results, 2)
	c.Make(extendedPod("third", gpu, "2"))
	c.waits("third", "1 cannot allocate all claims")

	// A node with a device plugin serves it without a claim.
	c.Make(extendedPod("many", gpu, "3"))
	c.waits("many", "1 cannot allocate all claims")
	room := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), gpu: resource.MustParse("3")}
	c.Make(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{Allocatable: room, Capacity: room,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
	plugged := controlplane.Until(c, &corev1.PodList{}, "default", "", func(p *corev1.Pod) bool {
		return p.Spec.NodeName == "n2"
	})
	require.Nil(t, plugged.Status.ExtendedResourceClaimStatus)

	// The claim is deleted once its pod has ended or is deleted, and other pods get the devices.
	waits := "third"
	if plugged.Name == "third" {
		waits = "many"
	}
	require.NoError(t,
		c.Status().Patch(c.Ctx, two, ctrl.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))))
	c.Gone(&claim)
	require.NoError(t, c.Delete(c.Ctx, early))
	require.NotNil(t, c.boundPod(waits).Status.ExtendedResourceClaimStatus)
}

// TestExtendedClaimsOfAnEarlierAttempt: a claim is deleted if the scheduler stopped before it bound the pod,
// because its devices may no longer fit.
func TestExtendedClaimsOfAnEarlierAttempt(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelError, HTTP: true})
	p := extendedPod("p", gpu, "1")
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	c.Make(gpuClass(), deviceSlice("n1", resourcev1.Device{Name: "gpu-0"}), p)
	stale := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "p-extended-resources-x", Finalizers: []string{resourcev1.Finalizer},
			Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID, Controller: new(true)},
			},
		}, Spec: deviceSpec("gpu"),
	}
	c.Make(stale)
	stale.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0"}}},
	}
	stale.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: p.UID}}
	require.NoError(t, c.Status().Update(c.Ctx, stale))
	c.Node("n1")
	require.NoError(t, c.Patch(c.Ctx, p, ctrl.RawPatch(types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`))))
	bound := c.boundPod("p")
	require.NotEqual(t, stale.Name, bound.Status.ExtendedResourceClaimStatus.ResourceClaimName)
	c.Gone(stale)
}
