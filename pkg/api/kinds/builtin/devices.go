package builtin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// deviceRows returns the rows of dynamic resource allocation, the group resource.k8s.io.
func deviceRows() []*kind.Resource {
	v1 := gv("resource.k8s.io", "v1")
	classes := row[resourcev1.DeviceClass, resourcev1.DeviceClassList](v1, "deviceclasses", "deviceclass",
		deviceclass.Strategy, metaFields)

	// Rows have neither namespaces nor an authorizer: the registry checks whether the namespace allows admin access
	// and whether the author may bind claims.
	claimStrategy := resourceclaim.NewStrategy(adminNamespaces{}, anyone{})
	claims := row[resourcev1.ResourceClaim, resourcev1.ResourceClaimList](v1, "resourceclaims", "resourceclaim",
		claimStrategy, metaFields)
	claims.Status = resourceclaim.NewStatusStrategy(claimStrategy)
	templates := row[resourcev1.ResourceClaimTemplate, resourcev1.ResourceClaimTemplateList](v1, "resourceclaimtemplates",
		"resourceclaimtemplate",
		resourceclaimtemplate.NewStrategy(adminNamespaces{}), metaFields)

	slices := row[resourcev1.ResourceSlice, resourcev1.ResourceSliceList](v1, "resourceslices", "resourceslice",
		resourceslice.Strategy, sliceFields)

	taints := row[resourcev1.DeviceTaintRule, resourcev1.DeviceTaintRuleList](v1, "devicetaintrules", "devicetaintrule",
		devicetaintrule.Strategy, metaFields)
	taints.Status = devicetaintrule.StatusStrategy
	// Upstream 1.37 stores v1beta2, which it does not serve by default.
	taints.Also = []*kind.Resource{
		row[resourcev1beta2.DeviceTaintRule, resourcev1beta2.DeviceTaintRuleList](gv(v1.Group, "v1beta2"), "devicetaintrules",
			"devicetaintrule",
			devicetaintrule.Strategy, metaFields),
	}

	for _, r := range []*kind.Resource{classes, claims, templates, slices} {
		r.ReturnsDeleted = true
	}
	return []*kind.Resource{classes, taints, claims, templates, slices}
}

// adminNamespaces returns namespaces that allow admin access to devices, whatever their name.
type adminNamespaces struct{ typedcore.NamespaceInterface }

func (adminNamespaces) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"}},
	}, nil
}

var sliceFields = kind.SelectFields([]string{
	resourcev1.ResourceSliceSelectorNodeName, resourcev1.ResourceSliceSelectorDriver,
	resourcev1.ResourceSliceSelectorPoolName,
},
	func(s *resourcev1.ResourceSlice, v []string) []string {
		node := ""
		if s.Spec.NodeName != nil {
			node = *s.Spec.NodeName
		}
		return append(v, node, s.Spec.Driver, s.Spec.Pool.Name)
	})
