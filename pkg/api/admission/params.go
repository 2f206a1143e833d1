package admission

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/coracle-dev/coracle/pkg/client"
)

// currentMapper maps with the kinds that are served at the time of the call. Plugins keep their mapper forever.
type currentMapper struct{ client client.Interface }

var _ meta.RESTMapper = currentMapper{}

func (m currentMapper) KindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.client.RESTMapper().KindFor(r)
}

func (m currentMapper) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.client.RESTMapper().KindsFor(r)
}

func (m currentMapper) ResourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.client.RESTMapper().ResourceFor(r)
}

func (m currentMapper) ResourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.client.RESTMapper().ResourcesFor(r)
}

func (m currentMapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.client.RESTMapper().RESTMapping(gk, versions...)
}

func (m currentMapper) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.client.RESTMapper().RESTMappings(gk, versions...)
}

func (m currentMapper) ResourceSingularizer(resource string) (string, error) {
	return m.client.RESTMapper().ResourceSingularizer(resource)
}

// noClient is the dynamic client that policy plugins require. They do not call it: parameters come from the shared
// cache's informers, for every served kind. A kind that was just removed has no objects.
type noClient struct {
	dynamic.NamespaceableResourceInterface
}

func (c noClient) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return c
}
func (c noClient) Namespace(string) dynamic.ResourceInterface { return c }

var errNotServed = errors.New("the kind is not served")

func (noClient) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return nil, errNotServed
}

func (noClient) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, errNotServed
}
