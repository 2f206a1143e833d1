package registry

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest"
	"k8s.io/utils/clock"
)

// maySign rejects a status of a PodCertificateRequest whose author may not sign for its signer. The check is upstream's
// strategy's, run once more with the authorizer.
func (c *call) maySign(obj, old runtime.Object) error {
	p := c.authorizer.Load()
	if p == nil || c.user == nil || c.Subresource != "status" {
		return nil
	}
	if _, ok := obj.(*certificates.PodCertificateRequest); !ok {
		return nil
	}
	strategy := podcertificaterequest.NewStatusStrategy(podcertificaterequest.NewStrategy(), *p, clock.RealClock{})
	if errs := strategy.ValidateUpdate(c.ctx, obj, old); len(errs) > 0 {
		return apierrors.NewInvalid(c.Resource.GroupVersionKind.GroupKind(), c.Name, errs)
	}
	return nil
}
