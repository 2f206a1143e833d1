package apiserver

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// models returns the types that the documents of a group and version define (of all groups if only is empty), and
// the kinds by type name.
func (o *openapi) models(only schema.GroupVersion) (roots []any, kinds map[string]spec.Extensions) {
	kinds = map[string]spec.Extensions{}
	add := func(gvk schema.GroupVersionKind, obj any) {
		name := util.GetCanonicalTypeName(obj)
		entry := map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
		if e := kinds[name]; e != nil {
			list := e["x-kubernetes-group-version-kind"].([]any)
			for _, x := range list {
				if reflect.DeepEqual(x, entry) {
					return
				}
			}
			e["x-kubernetes-group-version-kind"] = append(list, entry)
		} else {
			kinds[name] = spec.Extensions{"x-kubernetes-group-version-kind": []any{entry}}
		}
	}
	root := func(gv schema.GroupVersion, obj any) {
		if only.Empty() || gv == only {
			roots = append(roots, obj)
		}
	}
	// Add the types that paths refer to besides the kinds.
	roots = append(roots, &metav1.APIResourceList{})
	if slices.ContainsFunc(o.table.All(), func(r *kind.Resource) bool {
		return only.Empty() || r.GroupVersion() == only
	}) {
		roots = append(roots, &metav1.DeleteOptions{}, &metav1.Patch{}, &metav1.Status{}, &metav1.WatchEvent{})
	}
	if slices.ContainsFunc(o.table.All(), func(r *kind.Resource) bool {
		return r.Unstructured() && (only.Empty() || r.GroupVersion() == only)
	}) {
		roots = append(roots, &metav1.ObjectMeta{}, &metav1.ListMeta{})
	}
	for _, r := range documented(o.table) {
		if r.Unstructured() {
			continue
		}
		add(r.GroupVersionKind, r.New())
		root(r.GroupVersion(), r.New())
		if r.NewList != nil {
			add(r.ListGVK(), r.NewList())
			root(r.GroupVersion(), r.NewList())
		}
		for _, sub := range r.Subresources {
			if sub.New != nil {
				add(sub.GroupVersionKind, sub.New())
				root(r.GroupVersion(), sub.New())
			}
		}
	}
	return roots, kinds
}

// friendly converts a Go type's name to a definition name, as upstream's generator does.
func friendly(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}

func (o *openapi) schemas(gv schema.GroupVersion) (map[string]*spec.Schema, error) {
	roots, kinds := o.models(gv)
	all, err := builder3.BuildOpenAPIDefinitionsForResources(&common.OpenAPIV3Config{
		GetDefinitions:    o.defined(roots),
		GetDefinitionName: func(name string) (string, spec.Extensions) { return friendly(name), kinds[name] },
	}, names(roots)...)
	for _, r := range o.rows[gv] {
		if err == nil && r.Unstructured() {
			var object, list *spec.Schema
			if object, list, err = untyped(r, 3); err == nil {
				all[modelOf(r)], all[listOf(r)] = object, list
			}
		}
	}
	return all, err
}

func (o *openapi) definitions() (spec.Definitions, error) {
	roots, kinds := o.models(schema.GroupVersion{})
	s, err := builder.BuildOpenAPIDefinitionsForResources(&common.Config{
		GetDefinitions:    o.defined(roots),
		GetDefinitionName: func(name string) (string, spec.Extensions) { return friendly(name), kinds[name] },
	}, names(roots)...)
	if err != nil {
		return nil, err
	}
	for _, r := range o.table.All() {
		if r.Unstructured() {
			object, list, err := untyped(r, 2)
			if err != nil {
				return nil, err
			}
			s.Definitions[modelOf(r)], s.Definitions[listOf(r)] = *object, *list
		}
	}
	// As upstream, prune the defaults "" and {}, which often violate the field's own schema, so that validators
	// refuse the document.
	prune := schemamutation.Walker{
		RefCallback: schemamutation.RefCallbackNoop, SchemaCallback: func(s *spec.Schema) *spec.Schema {
			if s.Default == nil {
				return s
			}
			pruned := *s
			pruned.Default = nil
			return &pruned
		},
	}
	for name, definition := range s.Definitions {
		s.Definitions[name] = *prune.WalkSchema(&definition)
	}
	return s.Definitions, nil
}

// modelOf returns the definition name of a kind: its Go type's, or else reversed group, version and kind.
func modelOf(r *kind.Resource) string {
	if !r.Unstructured() {
		return modelName(r.New())
	}
	parts := strings.Split(r.Group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + r.Version + "." + r.Kind
}

// listOf returns the definition name of a kind's list.
func listOf(r *kind.Resource) string {
	if !r.Unstructured() {
		return modelName(r.NewList())
	}
	return strings.TrimSuffix(modelOf(r), r.Kind) + r.ListGVK().Kind
}

// untyped returns the schemas of a kind without a Go type and of its list, for OpenAPI 2 or 3. If the kind's own
// schema cannot be converted, it is omitted, so that the rest of the document can be served.
func untyped(r *kind.Resource, form int) (object, list *spec.Schema, err error) {
	if r.Describe != nil {
		if object, list, err = r.Describe(form); err == nil {
			return object, list, nil
		}
	}
	refs := "#/components/schemas/"
	if form == 2 {
		refs = "#/definitions/"
	}
	gvk := func(k string) spec.Extensions {
		return spec.Extensions{
			"x-kubernetes-group-version-kind": []any{map[string]any{"group": r.Group, "version": r.Version, "kind": k}},
		}
	}
	ref := func(name string) spec.Schema { return *spec.RefSchema(refs + name) }
	object = &spec.Schema{}
	if r.Schema != nil {
		*object = *r.Schema
	}
	object.Type = spec.StringOrArray{"object"}
	object.Properties = maps.Clone(object.Properties)
	if object.Properties == nil {
		object.Properties = map[string]spec.Schema{}
	}
	object.Properties["apiVersion"], object.Properties["kind"] = *spec.StringProperty(), *spec.StringProperty()
	object.Properties["metadata"] = ref(modelName(&metav1.ObjectMeta{}))
	object.Extensions = gvk(r.Kind)
	if r.Schema == nil {
		object.Extensions.Add("x-kubernetes-preserve-unknown-fields", true)
	}
	item := ref(modelOf(r))
	list = &spec.Schema{
		SchemaProps: spec.SchemaProps{
			Type: spec.StringOrArray{"object"}, Required: []string{"items"}, Properties: map[string]spec.Schema{
				"apiVersion": *spec.StringProperty(), "kind": *spec.StringProperty(),
				"metadata": ref(modelName(&metav1.ListMeta{})), "items": *spec.ArrayProperty(&item),
			},
		},
		VendorExtensible: spec.VendorExtensible{Extensions: gvk(r.ListGVK().Kind)},
	}
	return object, list, nil
}

func names(roots []any) []string {
	var out []string
	for _, r := range roots {
		out = append(out, util.GetCanonicalTypeName(r))
	}
	return out
}

// defined returns upstream's generated definitions, and reflected ones for Coracle's own kinds.
func (o *openapi) defined(roots []any) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := generated.GetOpenAPIDefinitions(ref)
		rf := reflection{ref, all, docsOf(o.table)}
		for _, r := range roots {
			rf.schema(reflect.TypeOf(r))
		}
		return all
	}
}

// reflection derives definitions from Go types.
type reflection struct {
	ref  common.ReferenceCallback
	all  map[string]common.OpenAPIDefinition
	docs docs
}

// schema adds the definitions of a struct type and of the types that it refers to, unless they exist. It returns the
// type's schema and the definition names in it.
func (r reflection) schema(t reflect.Type) (spec.Schema, []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return *spec.BoolProperty(), nil
	case reflect.Int32:
		return *spec.Int32Property(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64:
		return *spec.Int64Property(), nil
	case reflect.Float32, reflect.Float64:
		return *spec.Float64Property(), nil
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return *spec.StrFmtProperty("byte"), nil
		}
		items, deps := r.schema(t.Elem())
		return *spec.ArrayProperty(&items), deps
	case reflect.Map:
		values, deps := r.schema(t.Elem())
		return *spec.MapProperty(&values), deps
	case reflect.Struct:
	case reflect.Interface:
		return spec.Schema{}, nil
	default:
		return *spec.StringProperty(), nil
	}
	name := util.GetCanonicalTypeName(reflect.New(t).Interface())
	refer := spec.Schema{SchemaProps: spec.SchemaProps{Ref: r.ref(name)}}
	if _, ok := r.all[name]; ok {
		return refer, []string{name}
	}
	r.all[name] = common.OpenAPIDefinition{} // reserve the name: the type may be recursive
	d := common.OpenAPIDefinition{
		Schema: spec.Schema{
			SchemaProps: spec.SchemaProps{
				Description: r.docs.ofType(t),
				Type:        []string{"object"},
				Properties:  map[string]spec.Schema{},
			},
		},
	}
	r.fields(t, &d)
	r.all[name] = d
	return refer, []string{name}
}

func (r reflection) fields(t reflect.Type, d *common.OpenAPIDefinition) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() || name == "-":
			continue
		case f.Anonymous && name == "":
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				r.fields(inner, d)
			}
			continue
		case name == "":
			name = f.Name
		}
		s, deps := r.schema(f.Type)
		if text := r.docs.ofField(t, f.Name); text != "" {
			s.Description = text
		}
		d.Schema.Properties[name] = s
		d.Dependencies = append(d.Dependencies, deps...)
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") &&
			f.Type.Kind() != reflect.Pointer {
			d.Schema.Required = append(d.Schema.Required, name)
		}
	}
}
