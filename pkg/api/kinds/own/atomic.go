package own

import (
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// atomicTypes returns the type converter of a kind in which field has one owner as a whole.
func atomicTypes(gvk schema.GroupVersionKind, field string) managedfields.TypeConverter {
	free := func(extensions spec.Extensions) spec.Schema {
		extensions["x-kubernetes-preserve-unknown-fields"] = true
		return spec.Schema{
			SchemaProps:      spec.SchemaProps{Type: []string{"object"}},
			VendorExtensible: spec.VendorExtensible{Extensions: extensions},
		}
	}
	text := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}}}
	model := free(spec.Extensions{
		"x-kubernetes-group-version-kind": []any{
			map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind},
		},
	})
	model.Properties = map[string]spec.Schema{
		"apiVersion": text,
		"kind":       text,
		"metadata":   free(spec.Extensions{}),
		field:        free(spec.Extensions{"x-kubernetes-map-type": "atomic"}),
	}
	types, err := managedfields.NewTypeConverter(
		map[string]*spec.Schema{gvk.Group + "." + gvk.Version + "." + gvk.Kind: &model}, false)
	if err != nil {
		panic(err) // the schema is fixed
	}
	return types
}
