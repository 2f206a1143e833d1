package builtin

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// admission returns the rows of the kinds that configure admission. Rows have no authorizer: the registry checks
// whether the author of a policy or binding may read its parameters.
func admission() []*kind.Resource {
	group := admissionv1.SchemeGroupVersion
	unresolved := resolver.ResourceResolverFunc(func(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
		return schema.GroupVersionResource{}, &meta.NoKindMatchError{
			GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version},
		}
	})
	validating := validatingadmissionpolicy.NewStrategy(nil, unresolved)
	policies := row[admissionv1.ValidatingAdmissionPolicy, admissionv1.ValidatingAdmissionPolicyList](group,
		"validatingadmissionpolicies", "validatingadmissionpolicy", validating, metaFields)
	policies.Status = validatingadmissionpolicy.NewStatusStrategy(validating)
	all := []*kind.Resource{
		row[admissionv1.MutatingAdmissionPolicy, admissionv1.MutatingAdmissionPolicyList](group, "mutatingadmissionpolicies",
			"mutatingadmissionpolicy",
			mutatingadmissionpolicy.NewStrategy(nil, unresolved), metaFields),
		row[admissionv1.MutatingAdmissionPolicyBinding, admissionv1.MutatingAdmissionPolicyBindingList](group,
			"mutatingadmissionpolicybindings", "mutatingadmissionpolicybinding",
			mutatingadmissionpolicybinding.NewStrategy(nil, nil, unresolved), metaFields),
		row[admissionv1.MutatingWebhookConfiguration, admissionv1.MutatingWebhookConfigurationList](group,
			"mutatingwebhookconfigurations", "mutatingwebhookconfiguration",
			mutatingwebhookconfiguration.Strategy, metaFields),
		policies,
		row[admissionv1.ValidatingAdmissionPolicyBinding, admissionv1.ValidatingAdmissionPolicyBindingList](group,
			"validatingadmissionpolicybindings", "validatingadmissionpolicybinding",
			validatingadmissionpolicybinding.NewStrategy(nil, nil, unresolved), metaFields),
		row[admissionv1.ValidatingWebhookConfiguration, admissionv1.ValidatingWebhookConfigurationList](group,
			"validatingwebhookconfigurations", "validatingwebhookconfiguration",
			validatingwebhookconfiguration.Strategy, metaFields),
	}
	for _, r := range all {
		r.Categories = []string{"api-extensions"}
	}
	return all
}
