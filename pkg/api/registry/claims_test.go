package registry

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func claimAt(k, namespace, name string) Target {
	return at(resourcev1.SchemeGroupVersion.WithKind(k), namespace, name)
}

func adminClaim(namespace string) *resourcev1.ResourceClaim {
	admin := true
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"}, Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu",
				Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AdminAccess: &admin}}}}},
	}
}

// Admin access to devices requires a labelled namespace (KEP-5018).
func TestAdminAccessNeedsANamespaceForIt(t *testing.T) {
	h := build(t)
	_, err := h.Create(h.ctx, claimAt("ResourceClaim", "work", ""), adminClaim("work"), metav1.CreateOptions{})
	requireStatus(t, err, 422, "spec.devices.requests[0].adminAccess",
		"admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace")
	template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "t"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: adminClaim("").Spec}}
	_, err = h.Create(h.ctx, claimAt("ResourceClaimTemplate", "work", ""), template.DeepCopy(), metav1.CreateOptions{})
	requireStatus(t, err, 422, "admin access to devices requires")

	put(h, at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", ""), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "drivers",
			Labels: map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"}},
	})
	_, err = h.Create(h.ctx, claimAt("ResourceClaim", "drivers", ""), adminClaim("drivers"), metav1.CreateOptions{})
	require.NoError(t, err)
}

// Writing an allocation requires the permission to bind claims, and writing a device's status the permission to
// report for its driver (KEP-4817).
func TestClaimStatusNeedsMoreThanItsVerb(t *testing.T) {
	h := build(t)
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "c"}, Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{
					{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}},
				},
			}},
	}
	put(h, claimAt("ResourceClaim", "work", ""), claim.DeepCopy())
	may := map[string][]string{"binder": {"update binding "}, "driver": {"arbitrary-node:update driver gpu.example.com"}}
	h.UseAuthorizer(authorizer.AuthorizerFunc(func(_ context.Context,
		a authorizer.Attributes) (authorizer.Decision, string, error) {
		if slices.Contains(may[a.GetUser().GetName()], a.GetVerb()+" "+a.GetSubresource()+" "+a.GetName()) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	}))
	update := func(name string, change func(*resourcev1.ResourceClaimStatus)) error {
		e := h.cache.Get(h.kinds.Table().ByGVK(resourcev1.SchemeGroupVersion.WithKind("ResourceClaim")), "work", "c")
		c := e.Object.(*resourcev1.ResourceClaim).DeepCopy()
		change(&c.Status)
		_, err := h.Update(request.WithUser(context.Background(), &user.DefaultInfo{Name: name}),
			sub(claimAt("ResourceClaim", "work", "c"), "status"), c, metav1.UpdateOptions{})
		return err
	}
	allocate := func(s *resourcev1.ResourceClaimStatus) {
		s.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0"}}},
		}
	}
	report := func(s *resourcev1.ResourceClaimStatus) {
		s.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0"}}
	}
	requireStatus(t, update("driver", allocate), 422, "status.allocation",
		`requires resource="resourceclaims/binding", verb="update" permission`)
	require.NoError(t, update("binder", allocate))
	requireStatus(t, update("binder", report), 422, "status.devices", `requires resource="resourceclaims/driver"`)
	require.NoError(t, update("driver", report))
}
