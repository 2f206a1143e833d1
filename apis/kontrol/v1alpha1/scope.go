package v1alpha1

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// scopes are Kubernetes' kinds by API group, the namespaced ones first. Only the clusters know the scopes of other
// kinds.
var scopes = map[string][2]string{
	"": {"ConfigMap Endpoints Event LimitRange PersistentVolumeClaim Pod PodTemplate ReplicationController " +
		"ResourceQuota Secret Service ServiceAccount", "Namespace Node PersistentVolume"},
	"admissionregistration.k8s.io": {"", "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding " +
		"MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding " +
		"ValidatingWebhookConfiguration"},
	"apiextensions.k8s.io":         {"", "CustomResourceDefinition"},
	"apiregistration.k8s.io":       {"", "APIService"},
	"apps":                         {"ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet", ""},
	"autoscaling":                  {"HorizontalPodAutoscaler", ""},
	"batch":                        {"CronJob Job", ""},
	"certificates.k8s.io":          {"PodCertificateRequest", "CertificateSigningRequest ClusterTrustBundle"},
	"coordination.k8s.io":          {"Lease", ""},
	"discovery.k8s.io":             {"EndpointSlice", ""},
	"events.k8s.io":                {"Event", ""},
	"flowcontrol.apiserver.k8s.io": {"", "FlowSchema PriorityLevelConfiguration"},
	"networking.k8s.io":            {"Ingress NetworkPolicy", "IPAddress IngressClass ServiceCIDR"},
	"node.k8s.io":                  {"", "RuntimeClass"},
	"policy":                       {"PodDisruptionBudget", ""},
	"rbac.authorization.k8s.io":    {"Role RoleBinding", "ClusterRole ClusterRoleBinding"},
	"resource.k8s.io":              {"ResourceClaim ResourceClaimTemplate", "DeviceClass DeviceTaintRule ResourceSlice"},
	"scheduling.k8s.io":            {"PodGroup", "PriorityClass"},
	"storage.k8s.io": {"CSIStorageCapacity",
		"CSIDriver CSINode StorageClass VolumeAttachment VolumeAttributesClass"},
	"storagemigration.k8s.io": {"", "StorageVersionMigration"},
}

// ScopeOf reports whether objects of a kind of Kubernetes are namespaced. It does not know other kinds.
func ScopeOf(group, kind string) (namespaced, known bool) {
	of := scopes[group]
	namespaced = slices.Contains(strings.Fields(of[0]), kind)
	return namespaced, namespaced || slices.Contains(strings.Fields(of[1]), kind)
}

// ValidateScope checks the scope of a Resource's object if its kind is Kubernetes' own.
func ValidateScope(r *Resource) field.ErrorList {
	t := TargetOf(r)
	if namespaced, known := ScopeOf(t.Group(), t.Kind); known {
		if err := CheckScope(t, namespaced); err != nil {
			return field.ErrorList{err}
		}
	}
	return nil
}

// CheckScope returns an error if a namespaced object has no namespace, or another one has.
func CheckScope(t Target, namespaced bool) *field.Error {
	at := field.NewPath("spec", "template", "metadata", "namespace")
	switch {
	case namespaced && t.Namespace == "":
		return field.Required(at, t.Kind+" is namespaced: set the namespace of the object, such as default")
	case !namespaced && t.Namespace != "":
		return field.Forbidden(at, t.Kind+" is not namespaced: remove the namespace of the object")
	}
	return nil
}
