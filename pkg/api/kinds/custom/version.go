package custom

import (
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// version is one version of a definition. Its expensive parts are created on first use.
type version struct {
	of    *definition
	index int
	spec  *apiextensionsv1.CustomResourceDefinitionVersion // without its schema, which props returns
	gvk   schema.GroupVersionKind

	// structural returns the schema for pruning and defaults, or nil if the version has no schema.
	structural func() (*structuralschema.Structural, error)
	mu         sync.Mutex // held while compiling
	compiled   lazily[compiled]
}

func newVersion(of *definition, index int) *version {
	spec := &of.crd.Spec.Versions[index]
	v := &version{
		of:    of,
		index: index,
		spec:  spec,
		gvk:   schema.GroupVersionKind{Group: of.crd.Spec.Group, Version: spec.Name, Kind: of.names.Kind},
	}
	v.structural = sync.OnceValues(func() (*structuralschema.Structural, error) {
		return guarded(v.makeStructural)
	})
	return v
}

// errSchema is upstream's error for requests to a kind whose definition cannot be used.
var errSchema = fmt.Errorf("the server could not properly serve the CR schema")

// guarded calls f and turns a panic into an error: other servers may have stored definitions on which a library
// panics.
func guarded[T any](f func() (T, error)) (out T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errSchema, p)
		}
	}()
	return f()
}

// props returns the schema in upstream's internal version, nil if there is none. Each call decodes it anew.
func (v *version) props() (*apiextensions.JSONSchemaProps, error) {
	list, err := v.of.packed.unpackSchemas()
	if err != nil {
		return nil, err
	}
	whole := *v.spec
	whole.Schema = list[v.index]
	return internalSchema(&whole)
}

// internalSchema converts the version's schema to upstream's internal version. It returns nil if there is no schema.
func internalSchema(spec *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.JSONSchemaProps, error) {
	if spec.Schema == nil || spec.Schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	in := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(spec.Schema,
		in, nil); err != nil {
		return nil, fmt.Errorf("failed converting CRD validation to internal version: %w", err)
	}
	return in.OpenAPIV3Schema, nil
}

func (v *version) makeStructural() (*structuralschema.Structural, error) {
	in, err := v.props()
	if err != nil || in == nil {
		return nil, err
	}
	s, err := structuralschema.NewStructural(in)
	if v.of.crd.Spec.PreserveUnknownFields {
		if err != nil {
			return nil, nil //nolint:nilerr // definitions from v1beta1 need no structural schema
		}
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSchema, err)
	}
	s = s.DeepCopy() // it shares defaults with the definition
	if err := defaulting.PruneDefaults(s); err != nil {
		return nil, fmt.Errorf("%w: %w", errSchema, err)
	}
	return s, nil
}

func (v *version) fill(o runtime.Object) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	if s, err := v.structural(); err == nil {
		defaulting.Default(u.Object, s)
	}
}

// coerce does for unstructured objects what decoding does for Go types, as upstream: it validates and prunes
// metadata, prunes unknown fields by the schema, and drops nulls that are not allowed and have no default.
func (v *version) coerce(o client.Object, how kind.Coercion) ([]string, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is not a custom resource", o)
	}
	s, err := v.structural()
	if err != nil {
		return nil, err
	}
	k, hasKind, err := unstructured.NestedString(u.Object, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(u.Object, "apiVersion")
	if err != nil {
		return nil, err
	}
	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields: how.Stored, ReturnUnknownFieldPaths: how.Unknown,
	})
	if err != nil {
		return nil, err
	}
	if !v.of.crd.Spec.PreserveUnknownFields {
		unknown = append(unknown,
			pruning.PruneWithOptions(u.Object, s, true, structuralschema.UnknownFieldPathOptions{
				TrackUnknownFieldPaths: how.Unknown,
			})...)
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s)
	}
	wrong, embedded := objectmeta.CoerceWithOptions(nil, u.Object, s, false, objectmeta.CoerceOptions{
		DropInvalidFields: how.Stored, ReturnUnknownFieldPaths: how.Unknown,
	})
	if wrong != nil {
		return nil, wrong
	}
	unknown = append(unknown, embedded...)
	if how.Stored && hasMeta && meta.Generation == 0 {
		meta.Generation = 1
	}
	if hasKind {
		u.SetKind(k)
	}
	if hasVersion {
		u.SetAPIVersion(apiVersion)
	}
	if hasMeta {
		if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
			return nil, err
		}
	}
	return unknown, nil
}
