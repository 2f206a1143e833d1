package own

import (
	"reflect"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// CustomResources returns definitions of kinds for other API servers. They have structural schemas derived from the Go
// types, and the kinds' selectable fields, status and scale subresources.
func CustomResources(kinds []Kind) []*apiextensionsv1.CustomResourceDefinition {
	list := make([]*apiextensionsv1.CustomResourceDefinition, len(kinds))
	for i, k := range kinds {
		list[i] = k.customResource()
	}
	return list
}

// podSelector is the JSON path of the string that holds the pod selector of a kind with the scale subresource.
const podSelector = ".status.selector"

func (k Kind) customResource() *apiextensionsv1.CustomResourceDefinition {
	r := k.Row
	schema := schemaOf(reflect.TypeOf(r.New()).Elem(), nil)
	schema.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object"}
	version := apiextensionsv1.CustomResourceDefinitionVersion{Name: r.Version, Served: true, Storage: true,
		Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema},
		Subresources: &apiextensionsv1.CustomResourceSubresources{}, AdditionalPrinterColumns: k.Columns}
	if k.Schema != nil {
		k.Schema(&schema)
	}
	for _, f := range r.FieldNames {
		if !strings.HasPrefix(f, "metadata.") {
			version.SelectableFields = append(version.SelectableFields, apiextensionsv1.SelectableField{JSONPath: "." + f})
		}
	}
	if r.Status != nil {
		version.Subresources.Status = &apiextensionsv1.CustomResourceSubresourceStatus{}
	}
	for _, s := range r.Subresources {
		if s.Scale != nil {
			version.Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath:   ".spec.replicas",
				StatusReplicasPath: ".status.replicas",
				LabelSelectorPath:  new(podSelector),
			}
		}
	}
	scope := apiextensionsv1.ClusterScoped
	if r.Namespaced {
		scope = apiextensionsv1.NamespaceScoped
	}
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{
			APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition",
		},
		ObjectMeta: metav1.ObjectMeta{Name: r.Plural + "." + r.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: r.Group, Scope: scope, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural:     r.Plural,
				Singular:   r.Singular,
				Kind:       r.Kind,
				ListKind:   r.Kind + "List",
				ShortNames: r.ShortNames,
				Categories: r.Categories,
			},
		},
	}
}

// special contains the types whose JSON does not follow from their fields.
var special = map[reflect.Type]apiextensionsv1.JSONSchemaProps{
	reflect.TypeFor[metav1.Time]():          {Type: "string", Format: "date-time"},
	reflect.TypeFor[metav1.MicroTime]():     {Type: "string", Format: "date-time"},
	reflect.TypeFor[time.Time]():            {Type: "string", Format: "date-time"},
	reflect.TypeFor[metav1.Duration]():      {Type: "string"},
	reflect.TypeFor[resource.Quantity]():    {XIntOrString: true},
	reflect.TypeFor[intstr.IntOrString]():   {XIntOrString: true},
	reflect.TypeFor[metav1.ObjectMeta]():    anything(),
	reflect.TypeFor[runtime.RawExtension](): anything(),
	reflect.TypeFor[apiextensionsv1.JSON](): {XPreserveUnknownFields: new(true)},
	reflect.TypeFor[[]byte]():               {Type: "string", Format: "byte"},
}

func anything() apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
}

// schemaOf returns a type's schema. above lists the enclosing types. Where a type contains itself, any fields are
// allowed.
func schemaOf(t reflect.Type, above []reflect.Type) apiextensionsv1.JSONSchemaProps {
	if s, ok := special[t]; ok {
		return s
	}
	for _, a := range above {
		if a == t {
			return anything()
		}
	}
	above = append(above[:len(above):len(above)], t)
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), above)
	case reflect.String:
		return apiextensionsv1.JSONSchemaProps{Type: "string"}
	case reflect.Bool:
		return apiextensionsv1.JSONSchemaProps{Type: "boolean"}
	case reflect.Int32:
		return apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int32"}
	case reflect.Int, reflect.Int64:
		return apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int64"}
	case reflect.Float32, reflect.Float64:
		return apiextensionsv1.JSONSchemaProps{Type: "number"}
	case reflect.Slice:
		items := schemaOf(t.Elem(), above)
		return apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}
	case reflect.Map:
		values := schemaOf(t.Elem(), above)
		return apiextensionsv1.JSONSchemaProps{
			Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &values},
		}
	case reflect.Struct:
		s := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
		fieldsOf(t, above, &s)
		return s
	}
	return anything()
}

// fieldsOf adds the fields of a struct and its embedded structs to a schema. Fields without omitempty or
// omitzero are required, except for pointers, maps and slices.
func fieldsOf(t reflect.Type, above []reflect.Type, s *apiextensionsv1.JSONSchemaProps) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous:
			fieldsOf(f.Type, above, s)
		case name != "":
			s.Properties[name] = schemaOf(f.Type, above)
			if !strings.Contains(rest, "omitempty") && !strings.Contains(rest, "omitzero") && f.Type.Kind() != reflect.Pointer &&
				f.Type.Kind() != reflect.Map && f.Type.Kind() != reflect.Slice {
				s.Required = append(s.Required, name)
			}
		}
	}
}
