package builtin

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// ingressRows returns the rows of Ingress, IngressClass and NetworkPolicy. pkg/node/ingress serves Ingresses of its
// own class. Other classes need a controller in a pod.
func ingressRows() []*kind.Resource {
	group := gv("networking.k8s.io", "v1")
	ingresses := row[networkingv1.Ingress, networkingv1.IngressList](group, "ingresses", "ingress", ingress.Strategy,
		metaFields)
	ingresses.Keys, ingresses.ShortNames, ingresses.Status = "ingress", []string{"ing"}, ingress.StatusStrategy
	classes := row[networkingv1.IngressClass, networkingv1.IngressClassList](group, "ingressclasses", "ingressclass",
		ingressclass.Strategy, metaFields)
	return []*kind.Resource{ingresses, classes, policyRow()}
}
