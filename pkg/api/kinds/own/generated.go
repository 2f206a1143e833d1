package own

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// GeneratedModels returns upstream's generated schemas of the Go type root and of the types that it refers to.
func GeneratedModels(definitions common.GetOpenAPIDefinitions, root string) map[string]*spec.Schema {
	all := definitions(func(name string) spec.Ref { return spec.MustCreateRef("#/components/schemas/" + name) })
	models := map[string]*spec.Schema{}
	var add func(name string)
	add = func(name string) {
		if models[name] != nil {
			return
		}
		d := all[name]
		models[name] = &d.Schema
		for _, o := range d.Dependencies {
			add(o)
		}
	}
	add(root)
	return models
}

// GeneratedTypes returns the type converter of a kind that client-go's schema does not have. root is its Go type.
func GeneratedTypes(definitions common.GetOpenAPIDefinitions, root string,
	gvk schema.GroupVersionKind) (managedfields.TypeConverter, error) {
	models := GeneratedModels(definitions, root)
	kind := *models[root]
	kind.Extensions = maps.Clone(kind.Extensions)
	kind.AddExtension("x-kubernetes-group-version-kind", []any{
		map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind},
	})
	models[root] = &kind
	return managedfields.NewTypeConverter(models, false)
}
