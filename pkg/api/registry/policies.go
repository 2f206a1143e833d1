package registry

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac"
)

// mayReadParams rejects admission policies and bindings whose author may not read their parameters, because a policy's
// messages can reveal them. The checks are upstream's strategies', run once more with the authorizer.
func (c *call) mayReadParams(obj, old runtime.Object) error {
	p := c.authorizer.Load()
	if p == nil || c.user == nil || c.Resource.Group != admissionregistration.GroupName ||
		rbacregistry.EscalationAllowed(c.ctx) {
		return nil
	}
	getter, resolve := policyReader{c.Registry}, resolver.ResourceResolverFunc(c.resourceOf)
	var strategy interface {
		rest.RESTCreateStrategy
		rest.RESTUpdateStrategy
	}
	switch o := obj.(type) {
	case *admissionregistration.MutatingAdmissionPolicy:
		if o.Spec.ParamKind == nil {
			return nil
		}
		strategy = mutatingadmissionpolicy.NewStrategy(*p, resolve)
	case *admissionregistration.MutatingAdmissionPolicyBinding:
		strategy = mutatingadmissionpolicybinding.NewStrategy(*p, getter, resolve)
	case *admissionregistration.ValidatingAdmissionPolicy:
		if o.Spec.ParamKind == nil {
			return nil
		}
		strategy = validatingadmissionpolicy.NewStrategy(*p, resolve)
	case *admissionregistration.ValidatingAdmissionPolicyBinding:
		strategy = validatingadmissionpolicybinding.NewStrategy(*p, getter, resolve)
	default:
		return nil
	}
	var errs field.ErrorList
	if old == nil {
		errs = strategy.Validate(c.ctx, obj)
	} else {
		errs = strategy.ValidateUpdate(c.ctx, obj, old)
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(c.Resource.GroupVersionKind.GroupKind(), c.Name, errs)
}

func (r *Registry) resourceOf(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	if row := r.kinds.Table().ByGVK(gvk); row != nil {
		return row.GVR(), nil
	}
	return schema.GroupVersionResource{}, &meta.NoKindMatchError{
		GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version},
	}
}

type policyReader struct{ r *Registry }

func readPolicy[T any](r *Registry, kindName, name string) (T, error) {
	var none T
	row := r.kinds.Table().ByGVK(admissionv1.SchemeGroupVersion.WithKind(kindName))
	if row == nil {
		return none, apierrors.NewNotFound(admissionv1.Resource(kindName), name)
	}
	e := r.cache.Get(row, "", name)
	if e == nil {
		return none, apierrors.NewNotFound(row.GR(), name)
	}
	in, err := (&call{Registry: r, row: row}).internal(e)
	if err != nil {
		return none, err
	}
	policy, ok := in.(T)
	if !ok {
		return none, apierrors.NewNotFound(row.GR(), name)
	}
	return policy, nil
}

func (p policyReader) GetValidatingAdmissionPolicy(_ context.Context,
	name string) (*admissionregistration.ValidatingAdmissionPolicy, error) {
	return readPolicy[*admissionregistration.ValidatingAdmissionPolicy](p.r, "ValidatingAdmissionPolicy", name)
}

func (p policyReader) GetMutatingAdmissionPolicy(_ context.Context,
	name string) (*admissionregistration.MutatingAdmissionPolicy, error) {
	return readPolicy[*admissionregistration.MutatingAdmissionPolicy](p.r, "MutatingAdmissionPolicy", name)
}
