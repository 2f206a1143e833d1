// Package kindtest runs the strategies of kinds in tests, without a registry.
package kindtest

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Context returns a context as strategies expect it: with request info and, for namespaced kinds, the namespace
// "ns".
func Context(r *kind.Resource, subresource string) context.Context {
	ns := ""
	if r.Namespaced {
		ns = "ns"
	}
	return request.WithRequestInfo(request.WithNamespace(context.Background(), ns), &request.RequestInfo{
		IsResourceRequest: true,
		APIGroup:          r.Group, APIVersion: r.Version, Resource: r.Plural, Subresource: subresource, Namespace: ns,
	})
}

// Create does what the registry does to a new object before it stores it.
func Create(r *kind.Resource, o client.Object) (client.Object, error) {
	r.Default(o)
	obj, err := r.Internal(o)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(obj.(metav1.Object))
	if err := rest.BeforeCreate(r.Strategy, Context(r, ""), obj); err != nil {
		return nil, err
	}
	return r.External(obj)
}
