package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/apis/resource"
	resourceregistry "k8s.io/kubernetes/pkg/registry/resource"
)

// mayClaim rejects claims and templates with admin access to devices in namespaces that do not allow it (KEP-5018),
// and statuses of claims whose author may not bind claims or may not report for the driver (KEP-4817). Upstream's
// strategies make these checks with an authorizer and a namespace client.
func (c *call) mayClaim(obj, old runtime.Object) error {
	var errs field.ErrorList
	switch o := obj.(type) {
	case *resource.ResourceClaimTemplate:
		if old == nil {
			errs = resourceregistry.AuthorizedForAdmin(c.ctx, o.Spec.Spec.Devices.Requests, c.Namespace,
				namespaceReader{registry: c.Registry})
		}
	case *resource.ResourceClaim:
		was, _ := old.(*resource.ResourceClaim)
		switch {
		case was == nil:
			errs = resourceregistry.AuthorizedForAdmin(c.ctx, o.Spec.Devices.Requests, c.Namespace,
				namespaceReader{registry: c.Registry})
		case c.Subresource == "status":
			errs = resourceregistry.AuthorizedForAdminStatus(c.ctx, allocated(o), allocated(was), c.Namespace,
				namespaceReader{registry: c.Registry})
			if c.user == nil || c.authorizer.Load() == nil {
				break
			}
			path := field.NewPath("status")
			errs = append(errs,
				resourceregistry.AuthorizedForBinding(c.ctx, path.Child("allocation"), c.Registry, o.Status, was.Status)...)
			if o.Status.Allocation != nil {
				errs = append(errs,
					resourceregistry.AuthorizedForDeviceStatus(c.ctx, path.Child("devices"), c.Registry, o.Status, was.Status)...)
			}
		}
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(c.Resource.GroupVersionKind.GroupKind(), c.Name, errs)
	}
	return nil
}

func allocated(claim *resource.ResourceClaim) []resource.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return claim.Status.Allocation.Devices.Results
}

type namespaceReader struct {
	typedcore.NamespaceInterface
	registry *Registry
}

func (r namespaceReader) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	if _, err := r.registry.sync(ctx); err != nil {
		return nil, err
	}
	if e := r.registry.cache.Get(r.registry.namespaces, "", name); e != nil {
		if ns, ok := e.Object.(*corev1.Namespace); ok {
			return ns, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
}
