package own

import (
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AtomicTypes returns the type converter of a kind in which field has one owner as a whole. For a record that only
// one controller writes, this keeps the managed fields at a few bytes, whatever the record's size.
func AtomicTypes(gvk schema.GroupVersionKind, field string) (managedfields.TypeConverter, error) {
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
	return managedfields.NewTypeConverter(map[string]*spec.Schema{gvk.Group + "." + gvk.Version + "." + gvk.Kind: &model},
		false)
}
