package registry

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestQuotaOfDevices: claims are charged for their devices by class and by the class's extended resource, except
// for devices that their pod is charged for.
func TestQuotaOfDevices(t *testing.T) {
	h := quotaEnv(t)
	of := func(resource, name string) Target {
		t := v1("Pod", name)
		t.Resource = h.Kinds().Table().ByGVR(resourcev1.SchemeGroupVersion.WithResource(resource))
		return t
	}
	gpu := "example.com/gpu"
	class := of("deviceclasses", "")
	class.Namespace = ""
	put(h, class, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu},
	})
	claim := func(name string, count int64) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: name},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{
					{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", Count: count}},
				}}},
		}
	}
	put(h, of("resourceclaims", ""), claim("before", 1))
	const byClass, byName, byImplicitName = "gpu.deviceclass.resource.k8s.io/devices", "requests.example.com/gpu",
		"requests.deviceclass.resource.kubernetes.io/gpu"
	h.limit("q", corev1.ResourceQuotaSpec{
		Hard: hard(byClass, "6", byName, "4", byImplicitName, "9", "count/resourceclaims.resource.k8s.io", "9"),
	})
	used := func(class, name, implicit string) {
		t.Helper()
		for range 2 {
			require.Equal(t, []string{class, name, implicit},
				[]string{h.used("q", byClass), h.used("q", byName), h.used("q", byImplicitName)})
			h.recount(h.quota("q")) // a recount gives the same usage
		}
	}
	used("1", "1", "1")
	require.NoError(t, h.try(of("resourceclaims", ""), claim("a", 2)))
	used("3", "3", "3")
	requireStatus(t, h.try(of("resourceclaims", ""), claim("b", 2)), 403,
		"requested: requests.example.com/gpu=2, used: requests.example.com/gpu=3, limited: requests.example.com/gpu=4")

	// The pod is charged by extended resource, its claim by class, and another claim by both.
	p := smallPod("p")
	p.Spec.Containers[0].Resources.Limits = hard(gpu, "1")
	pod := put(h, v1("Pod", ""), p)
	used("3", "4", "3")
	own := claim("p-extended-resources-x", 1)
	own.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	own.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: "p", UID: pod.UID, Controller: new(true)},
	}
	require.NoError(t, h.try(of("resourceclaims", ""), own))
	used("4", "4", "4")
	more := own.DeepCopy()
	more.Name = "q-extended-resources-x"
	requireStatus(t, h.try(of("resourceclaims", ""), more), 403, "exceeded quota") // charged in full
}
