package own

import (
	"cmp"
	"context"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Untyped defines a kind without a Go type, such as a custom resource. Kind and Plural are required. Functions may
// be nil.
type Untyped struct {
	Kind                 schema.GroupVersionKind
	Plural, Singular     string // Singular defaults to the lower-case kind
	ShortNames           []string
	Categories           []string
	Cluster              bool // cluster-scoped
	Status               bool // status is a subresource
	Default              func(*unstructured.Unstructured)
	Validate             func(*unstructured.Unstructured) field.ErrorList
	ValidateUpdate       func(obj, old *unstructured.Unstructured) field.ErrorList
	ValidateStatusUpdate func(obj, old *unstructured.Unstructured) field.ErrorList
	Schema               *spec.Schema
	Hash                 string // see kind.Resource.Hash
}

// Row returns the row. As for upstream's custom resources, the generation counts changes of everything except
// metadata. With a status subresource, status is written separately and does not count.
func (u Untyped) Row() *kind.Resource {
	s := &untyped{NameGenerator: names.SimpleNameGenerator, Untyped: u}
	r := &kind.Resource{
		GroupVersionKind: u.Kind, Plural: u.Plural, Singular: u.Singular, ShortNames: u.ShortNames, Categories: u.Categories,
		Namespaced: !u.Cluster, Keys: u.Kind.Group + "/" + u.Plural, Schema: u.Schema, Hash: u.Hash, Strategy: s,
		New: func() client.Object {
			o := &unstructured.Unstructured{Object: map[string]any{}}
			o.SetGroupVersionKind(u.Kind)
			return o
		},
		NewList: func() client.ObjectList {
			l := &unstructured.UnstructuredList{Object: map[string]any{}}
			l.SetGroupVersionKind(u.Kind.GroupVersion().WithKind(u.Kind.Kind + "List"))
			return l
		},
		Internal: func(o client.Object) (runtime.Object, error) { return o, nil },
		External: func(o runtime.Object) (client.Object, error) { return o.(client.Object), nil },
		Verbs:    []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		Fields:   nameFields(!u.Cluster), FieldNames: []string{"metadata.name"},
		Table: rest.NewDefaultTableConvertor(schema.GroupResource{Group: u.Kind.Group, Resource: u.Plural}),
	}
	r.Singular = cmp.Or(r.Singular, strings.ToLower(u.Kind.Kind))
	if !u.Cluster {
		r.FieldNames = append(r.FieldNames, "metadata.namespace")
	}
	if u.Status {
		r.Status = &untypedStatus{s}
	}
	if u.Default != nil {
		r.Default = func(o runtime.Object) { u.Default(o.(*unstructured.Unstructured)) }
	}
	return r
}

func nameFields(namespaced bool) func(client.Object) fields.Set {
	return func(o client.Object) fields.Set {
		set := fields.Set{"metadata.name": o.GetName()}
		if namespaced {
			set["metadata.namespace"] = o.GetNamespace()
		}
		return set
	}
}

// untyped is the strategy of the main resource.
type untyped struct {
	names.NameGenerator
	Untyped
}

func (s *untyped) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{o.GetObjectKind().GroupVersionKind()}, false, nil
}

func (s *untyped) Recognizes(gvk schema.GroupVersionKind) bool               { return gvk == s.Kind }
func (s *untyped) NamespaceScoped() bool                                     { return !s.Cluster }
func (s *untyped) AllowCreateOnUpdate(context.Context) bool                  { return false }
func (s *untyped) AllowUnconditionalUpdate(context.Context) bool             { return false }
func (s *untyped) Canonicalize(runtime.Object)                               {}
func (s *untyped) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (s *untyped) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s *untyped) PrepareForCreate(_ context.Context, obj runtime.Object) {
	u := obj.(*unstructured.Unstructured)
	if s.Status {
		delete(u.Object, "status")
	}
	u.SetGeneration(1)
}

func (s *untyped) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	u, was := obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if s.Status {
		set(u.Object, "status", was.Object)
	}
	u.SetGeneration(was.GetGeneration())
	if (u.GetDeletionTimestamp() == nil) != (was.GetDeletionTimestamp() == nil) ||
		!equality.Semantic.DeepEqual(s.counted(u), s.counted(was)) {
		u.SetGeneration(was.GetGeneration() + 1)
	}
}

// counted returns the part of an object whose changes increment the generation.
func (s *untyped) counted(u *unstructured.Unstructured) map[string]any {
	part := maps.Clone(u.Object)
	delete(part, "metadata")
	if s.Status {
		delete(part, "status")
	}
	return part
}

// set copies the field name from from to object, or removes it if from does not have it.
func set(object map[string]any, name string, from map[string]any) {
	if v, ok := from[name]; ok {
		object[name] = v
	} else {
		delete(object, name)
	}
}

func (s *untyped) meta(obj runtime.Object) field.ErrorList {
	return apivalidation.ValidateObjectMetaAccessor(obj.(metav1.Object), !s.Cluster, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))
}

func (s *untyped) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	errs := s.meta(obj)
	if s.Untyped.Validate != nil {
		errs = append(errs, s.Untyped.Validate(obj.(*unstructured.Unstructured))...)
	}
	return errs
}

func (s *untyped) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return s.validateUpdate(obj, old, s.Untyped.ValidateUpdate)
}

func (s *untyped) validateUpdate(obj, old runtime.Object,
	more func(obj, old *unstructured.Unstructured) field.ErrorList) field.ErrorList {
	errs := append(s.meta(obj),
		apivalidation.ValidateObjectMetaAccessorUpdate(
			obj.(metav1.Object), old.(metav1.Object), field.NewPath("metadata"))...)
	if more != nil {
		errs = append(errs, more(obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured))...)
	}
	return errs
}

// GetResetFields returns the fields that server-side apply must not own through the main resource.
func (s *untyped) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.Status {
		return nil
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.Kind.GroupVersion().String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// untypedStatus is the strategy of the status subresource.
type untypedStatus struct{ *untyped }

// PrepareForUpdate preserves the old object except for its status and managed fields.
func (s *untypedStatus) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	u, was := obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	managed, rv := u.GetManagedFields(), u.GetResourceVersion()
	kept := was.DeepCopy()
	set(kept.Object, "status", u.Object)
	u.Object = kept.Object
	u.SetManagedFields(managed)
	u.SetResourceVersion(rv)
}

func (s *untypedStatus) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return s.validateUpdate(obj, old, s.ValidateStatusUpdate)
}

// GetResetFields returns the fields that server-side apply must not own through the status subresource: spec, as
// upstream.
func (s *untypedStatus) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.Kind.GroupVersion().String()): fieldpath.NewSet(fieldpath.MakePathOrDie("spec")),
	}
}
