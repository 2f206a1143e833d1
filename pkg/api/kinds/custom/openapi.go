package custom

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	wrap "k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

const (
	definitionsV2 = "#/definitions/"
	definitionsV3 = "#/components/schemas/"

	gvkExtension    = "x-kubernetes-group-version-kind"
	fieldsExtension = "x-kubernetes-selectable-fields"
	conventions     = "More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
)

// model returns the name of a kind's OpenAPI definition: reversed group, version, kind.
func (v *version) model(k string) string {
	parts := strings.Split(v.gvk.Group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + v.gvk.Version + "." + k
}

// describe returns the schemas of an object and of a list as upstream publishes them in OpenAPI 2 or 3.
func (v *version) describe(form int) (object, list *spec.Schema, err error) {
	s, err := guarded(func() (*structuralschema.Structural, error) { return v.published() })
	if err != nil {
		return nil, nil, err
	}
	refs := definitionsV3
	if form == 2 {
		refs = definitionsV2
	}
	switch {
	case s == nil, form == 2 && (s.XPreserveUnknownFields || v.of.crd.Spec.PreserveUnknownFields):
		// With any properties in the schema, kubectl would reject all others.
		object = &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	default:
		if form == 2 {
			s = openapiv2.ToStructuralOpenAPIV2(s)
		}
		object = s.ToKubeOpenAPI()
		object.SetProperty("metadata", metadata(refs))
		typeMeta(object)
		embedded(object, refs, form)
	}
	object.AddExtension(gvkExtension, []any{
		map[string]any{"group": v.gvk.Group, "version": v.gvk.Version, "kind": v.gvk.Kind},
	})
	items := *spec.ArrayProperty(spec.RefSchema(refs + v.model(v.gvk.Kind))).WithDescription(fmt.Sprintf("List of %s. %s",
		v.of.names.Plural, conventions))
	meta := *spec.RefSchema(refs +
		metav1.ListMeta{}.OpenAPIModelName()).WithDescription(metav1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"])
	list = new(spec.Schema).Typed("object", "").WithDescription(fmt.Sprintf("%s is a list of %s", v.of.names.ListKind,
		v.gvk.Kind)).WithRequired("items").
		SetProperty("items", items).SetProperty("metadata", meta)
	typeMeta(list)
	list.AddExtension(gvkExtension, []any{
		map[string]any{"group": v.gvk.Group, "version": v.gvk.Version, "kind": v.of.names.ListKind},
	})
	if len(v.spec.SelectableFields) > 0 {
		var paths []any
		for _, name := range fieldNames(v.spec.SelectableFields) {
			paths = append(paths, map[string]any{"fieldPath": name})
		}
		object.AddExtension(fieldsExtension, paths)
		list.AddExtension(fieldsExtension, paths)
	}
	if form != 2 { // in OpenAPI 3 a reference may have a description beside it
		object, list = wrap.WrapRefs(object), wrap.WrapRefs(list)
	}
	return object, list, nil
}

// published returns the schema to publish, or nil if it is invalid. Unlike structural, it keeps invalid defaults.
func (v *version) published() (*structuralschema.Structural, error) {
	in, err := v.props()
	if err != nil || in == nil || validation.SchemaHasInvalidTypes(in) {
		return nil, err
	}
	s, err := structuralschema.NewStructural(in)
	if err != nil || len(structuralschema.ValidateStructural(nil, s)) > 0 {
		return nil, nil //nolint:nilerr // the condition NonStructuralSchema has the reason
	}
	return s.Unfold(), nil
}

func metadata(refs string) spec.Schema {
	return *spec.RefSchema(refs +
		metav1.ObjectMeta{}.OpenAPIModelName()).WithDescription(metav1.PartialObjectMetadata{}.SwaggerDoc()["metadata"])
}

func text(description string) spec.Schema {
	return *spec.StringProperty().WithDescription(description)
}

func typeMeta(s *spec.Schema) {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	s.SetProperty("apiVersion", text(docs["apiVersion"]))
	s.SetProperty("kind", text(docs["kind"]))
}

// embedded adds metadata to the schemas of embedded resources.
func embedded(s *spec.Schema, refs string, form int) {
	if s == nil {
		return
	}
	for k, p := range s.Properties {
		embedded(&p, refs, form)
		s.Properties[k] = p
	}
	if s.Items != nil {
		embedded(s.Items.Schema, refs, form)
	}
	if s.AdditionalProperties != nil {
		embedded(s.AdditionalProperties.Schema, refs, form)
	}
	if unknown, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); unknown && form == 2 {
		return // otherwise kubectl would reject unknown fields
	}
	if is, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !is {
		return
	}
	s.SetProperty("apiVersion",
		text("apiVersion defines the versioned schema of this representation of an object. "+conventions+"#resources"))
	s.SetProperty("kind",
		text("kind is a string value representing the type of this object. In CamelCase. "+conventions+"#types-kinds"))
	s.SetProperty("metadata", metadata(refs))
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}

// metaModels returns the schemas of ObjectMeta and the types that it refers to.
var metaModels = sync.OnceValue(func() map[string]*spec.Schema {
	return own.GeneratedModels(generated.GetOpenAPIDefinitions, metav1.ObjectMeta{}.OpenAPIModelName())
})

// definitionTypes returns the type converter of CustomResourceDefinition. client-go's schema does not have the kind.
var definitionTypes = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	gvk := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	return own.GeneratedTypes(generated.GetOpenAPIDefinitions,
		apiextensionsv1.CustomResourceDefinition{}.OpenAPIModelName(), gvk)
})

// definitionManagers creates the field manager of definitions, or of their status.
func definitionManagers(subresource string,
	reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	types, err := definitionTypes()
	if err != nil {
		return nil, err
	}
	gvk := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	return managedfields.NewDefaultFieldManager(types, scheme(), scheme(), scheme(), gvk, gvk.GroupVersion(), subresource,
		reset)
}

// typeConverter returns the type converter of all versions, which is created on first use.
func (d *definition) typeConverter() (managedfields.TypeConverter, error) {
	if t := d.types.Load(); t != nil {
		return *t, nil
	}
	d.typesMu.Lock()
	defer d.typesMu.Unlock()
	if t := d.types.Load(); t != nil {
		return *t, nil
	}
	t, err := guarded(func() (managedfields.TypeConverter, error) {
		models := map[string]*spec.Schema{}
		maps.Copy(models, metaModels())
		for _, v := range d.versions {
			object, _, err := v.describe(3)
			if err != nil {
				return nil, err
			}
			models[v.model(v.gvk.Kind)] = object
		}
		return managedfields.NewTypeConverter(models, d.crd.Spec.PreserveUnknownFields)
	})
	if err != nil {
		return nil, err
	}
	d.types.Store(&t)
	return t, nil
}

// dropTypes releases the type converter; the next write recreates it.
func (d *definition) dropTypes() { d.types.Store(nil) }

// managers creates the field manager of the version, or of its status.
func (v *version) managers(subresource string,
	reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	convertor, err := v.of.convertor()
	if err != nil {
		return nil, err
	}
	return managedfields.NewDefaultCRDFieldManager(typesOf{v.of}, convertor, v.of, v.of, v.gvk, v.gvk.GroupVersion(),
		subresource, reset)
}

// typesOf looks up the definition's type converter for each call, so that the converter can be released between
// writes.
type typesOf struct{ *definition }

func (t typesOf) ObjectToTyped(o runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	c, err := t.typeConverter()
	if err != nil {
		return nil, err
	}
	return c.ObjectToTyped(o, options...)
}

func (t typesOf) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	c, err := t.typeConverter()
	if err != nil {
		return nil, err
	}
	return c.TypedToObject(value)
}

// Default sets defaults in an object of any of the definition's versions.
func (d *definition) Default(o runtime.Object) {
	for _, v := range d.versions {
		if o.GetObjectKind().GroupVersionKind() == v.gvk {
			v.fill(o)
		}
	}
}

// New creates an empty object.
func (d *definition) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(gvk)
	return u, nil
}
