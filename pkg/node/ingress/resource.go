package ingress

import (
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Resource lets Ingresses name objects of a kind in their backend.resource.
type Resource struct {
	schema.GroupKind
	// Handler returns the handler for an object, which need not exist: the handler responds with 404 then. It bounds
	// the size of bodies and the time of requests, and returns when the request's context is done.
	Handler func(types.NamespacedName) http.Handler
}

// resource returns the handler of a backend that is not a service.
func (c *Config) resource(namespace string, ref *corev1.TypedLocalObjectReference) (http.Handler, error) {
	is := schema.GroupKind{Kind: ref.Kind}
	if ref.APIGroup != nil {
		is.Group = *ref.APIGroup
	}
	supported := ""
	for _, r := range c.Resources {
		if r.GroupKind == is {
			return r.Handler(types.NamespacedName{Namespace: namespace, Name: ref.Name}), nil
		}
		supported += ", or a resource of kind " + r.Kind + " and apiGroup " + r.Group
	}
	return nil, fmt.Errorf("resources of kind %q and apiGroup %q are not supported as backends: use a service%s", is.Kind,
		is.Group, supported)
}

func (b *builder) resource(i *networkingv1.Ingress, ref *corev1.TypedLocalObjectReference) *backend {
	h, err := b.read.resource(i.Namespace, ref)
	if err != nil {
		b.refuse(i, "backend %s: %v", ref.Name, err)
		return &backend{why: err.Error()}
	}
	return &backend{handler: h}
}
