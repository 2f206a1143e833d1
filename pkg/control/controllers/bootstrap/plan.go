package bootstrap

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Op is the operation that an object needs.
type Op string

// The operations of a Plan. Replace deletes an object with a wrong immutable field and creates it again.
const (
	Nothing Op = ""
	Create  Op = "create"
	Update  Op = "update"
	Replace Op = "replace"
	Status  Op = "status" // update the status alone
)

// Plan compares a required object with the existing one, which is nil if there is none. It returns the operation
// and the object to write. Labels, annotations and subjects that users added stay. As upstream, it does not change
// existing namespaces and classes. It does not touch objects that are being deleted.
func Plan(want, have client.Object) (Op, client.Object) {
	if have == nil {
		return Create, want.DeepCopyObject().(client.Object)
	}
	if have.GetDeletionTimestamp() != nil {
		return Nothing, nil
	}
	next := have.DeepCopyObject().(client.Object)
	switch w := want.(type) {
	case *corev1.Service:
		n := next.(*corev1.Service)
		if n.Spec.ClusterIP != w.Spec.ClusterIP {
			return Replace, next
		}
		if !equality.Semantic.DeepEqual(n.Spec.Ports, w.Spec.Ports) {
			n.Spec.Ports = w.Spec.Ports
		}
		n.Spec.Selector = w.Spec.Selector
		n.Spec.Type = corev1.ServiceTypeClusterIP
	case *discoveryv1.EndpointSlice:
		n := next.(*discoveryv1.EndpointSlice)
		n.Endpoints, n.Ports = w.Endpoints, w.Ports
	case *corev1.Endpoints: //nolint:staticcheck // deprecated, but old clients read the API's own address from it
		n := next.(*corev1.Endpoints) //nolint:staticcheck // as above
		n.Subsets = w.Subsets
	case *rbacv1.ClusterRoleBinding:
		n := next.(*rbacv1.ClusterRoleBinding)
		if n.RoleRef != w.RoleRef {
			return Replace, next
		}
		for _, s := range w.Subjects {
			if !slices.Contains(n.Subjects, s) {
				n.Subjects = append(n.Subjects, s)
			}
		}
	case *networkingv1.ServiceCIDR:
		return planRange(w, next.(*networkingv1.ServiceCIDR))
	default:
		return Nothing, nil
	}
	if labels := want.GetLabels(); len(labels) > 0 {
		merged := maps.Clone(labels)
		for k, v := range have.GetLabels() {
			if _, ours := labels[k]; !ours {
				merged[k] = v
			}
		}
		next.SetLabels(merged)
	}
	if equality.Semantic.DeepEqual(next, have) {
		return Nothing, nil
	}
	return Update, next
}

// planRange marks the ServiceCIDR as ready, as upstream does, unless its condition is already true or false. Its
// CIDRs are immutable, so a change of them replaces it.
func planRange(want, have *networkingv1.ServiceCIDR) (Op, client.Object) {
	if !slices.Equal(have.Spec.CIDRs, want.Spec.CIDRs) {
		return Replace, have
	}
	if c := meta.FindStatusCondition(have.Status.Conditions, networkingv1.ServiceCIDRConditionReady); c != nil &&
		c.Status != metav1.ConditionUnknown {
		return Nothing, nil
	}
	meta.SetStatusCondition(&have.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		Message: "Kubernetes default Service CIDR is ready",
	})
	return Status, have
}
