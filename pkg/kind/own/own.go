// Package own makes the rows of our own kinds from what their folder under apis brings: types, defaults, validation, columns.
//
// It may import kind and the Kubernetes API libraries, never k8s.io/kubernetes. It holds pure functions only.
package own

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Definition is what a kind of our own brings; Row makes its row. Kind, Plural, New and NewList are
// needed, nil functions do nothing. Metadata is validated as upstream validates it.
type Definition[P client.Object] struct {
	Kind                  schema.GroupVersionKind
	Plural                string // in lower case; Singular is the kind's name in lower case
	ShortNames            []string
	Categories            []string
	Cluster               bool // true where objects have no namespace
	New                   func() P
	NewList               func() client.ObjectList
	Default               func(P)
	Validate              func(P) field.ErrorList
	ValidateUpdate        func(obj, old P) field.ErrorList
	ValidateStatus        func(obj, old P) field.ErrorList
	Fields                func(P) fields.Set // further fields that can be selected on; always the same names
	Columns               func() []metav1.TableColumnDefinition
	Cells                 func(P, time.Time) []any
	AllowCreateOnUpdate   bool
	RequireUpdateRevision bool   // an update must carry a resourceVersion
	Source                string // the Go source of the types: its comments are what kubectl explain shows
}

// withStatus is a kind whose objects have a status.
type withStatus[T any] interface {
	client.Object
	*T
}

// Row makes the row of one of our own kinds. The writers of spec and status are apart: a write to the
// object leaves its status, a write to its status subresource leaves all else. status gives the address
// of an object's status, or is nil if the kind has none; its generation counts changes of all but status and metadata.
func Row[T, S any, P withStatus[T]](d Definition[P], status func(P) *S) *kind.Resource {
	s := &strategy[T, S, P]{NameGenerator: names.SimpleNameGenerator, Definition: d, status: status}
	group := d.Kind.GroupVersion()
	r := &kind.Resource{
		GroupVersionKind: d.Kind,
		Plural:           d.Plural,
		Singular:         strings.ToLower(d.Kind.Kind),
		ShortNames:       d.ShortNames,
		Categories:       d.Categories,
		Namespaced:       !d.Cluster,
		Keys:             d.Kind.Group + "/" + d.Plural, // where upstream keeps custom resources
		New:              func() client.Object { return d.New() },
		NewList:          d.NewList,
		Source:           d.Source,
		Strategy:         s,
		Internal:         func(o client.Object) (runtime.Object, error) { return o, nil },
		External: func(o runtime.Object) (client.Object, error) {
			o.GetObjectKind().SetGroupVersionKind(group.WithKind(d.Kind.Kind))
			return o.(client.Object), nil
		},
		Verbs: []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
	}
	if status != nil {
		r.Status = &statusStrategy[T, S, P]{s}
	}
	if d.Default != nil {
		r.Default = func(o runtime.Object) { d.Default(o.(P)) }
	}
	selectable := kind.MetaFields()
	if d.Fields != nil {
		further := slices.Sorted(maps.Keys(d.Fields(d.New())))
		selectable = kind.SelectFields(further, func(o P, v []string) []string {
			set := d.Fields(o)
			for _, n := range further {
				v = append(v, set[n])
			}
			return v
		})
	}
	if d.Cluster {
		selectable = selectable.ClusterScoped()
	}
	r.Fields, r.FieldNames = selectable.Set, selectable.Names
	r.Table = rest.NewDefaultTableConvertor(r.GR())
	if d.Cells != nil {
		columns := d.Columns()
		r.Table = &kind.Printer{Row: r, Print: func(o client.Object, headers bool) (*metav1.Table, error) {
			t := &metav1.Table{Rows: []metav1.TableRow{{Cells: d.Cells(o.(P), time.Now())}}}
			if headers {
				t.ColumnDefinitions = columns
			}
			return t, nil
		}}
	}
	return r
}

// strategy is the strategy of our own kinds' main resource.
type strategy[T, S any, P withStatus[T]] struct {
	names.NameGenerator
	Definition[P]
	status func(P) *S
}

// ObjectKinds and Recognizes say of what kind an object is, without a scheme.
func (s *strategy[T, S, P]) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := o.(P); !ok {
		return nil, false, runtime.NewNotRegisteredErrForKind("kind", s.Kind)
	}
	return []schema.GroupVersionKind{s.Kind}, false, nil
}

func (s *strategy[T, S, P]) Recognizes(gvk schema.GroupVersionKind) bool { return gvk == s.Kind }
func (s *strategy[T, S, P]) NamespaceScoped() bool                       { return !s.Cluster }

func (s *strategy[T, S, P]) AllowCreateOnUpdate(context.Context) bool {
	return s.Definition.AllowCreateOnUpdate
}

func (s *strategy[T, S, P]) AllowUnconditionalUpdate(context.Context) bool {
	return !s.RequireUpdateRevision
}

// Canonicalize has nothing to do: what was validated is what is stored.
func (s *strategy[T, S, P]) Canonicalize(runtime.Object) {}

func (s *strategy[T, S, P]) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (s *strategy[T, S, P]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// PrepareForCreate begins the generation and drops a status that the author sent, leaving its defaults.
func (s *strategy[T, S, P]) PrepareForCreate(_ context.Context, obj runtime.Object) {
	o := obj.(P)
	o.SetGeneration(1)
	if s.status != nil {
		var none S
		*s.status(o) = none
		if s.Definition.Default != nil {
			s.Definition.Default(o)
		}
	}
}

// PrepareForUpdate keeps the status and counts the generation.
func (s *strategy[T, S, P]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	o, was := obj.(P), old.(P)
	if s.status != nil {
		*s.status(o) = *s.status(was)
	}
	o.SetGeneration(was.GetGeneration())
	if (o.GetDeletionTimestamp() == nil) != (was.GetDeletionTimestamp() == nil) || !s.sameSpec(o, was) {
		o.SetGeneration(was.GetGeneration() + 1)
	}
}

// sameSpec compares all but kind, metadata and status.
func (s *strategy[T, S, P]) sameSpec(a, b P) bool {
	bare := func(p P) P {
		c := *p
		o := P(&c)
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		if m, ok := any(o).(metav1.ObjectMetaAccessor); ok {
			if om, ok := m.GetObjectMeta().(*metav1.ObjectMeta); ok {
				*om = metav1.ObjectMeta{}
			}
		}
		if s.status != nil {
			var none S
			*s.status(o) = none
		}
		return o
	}
	return equality.Semantic.DeepEqual(bare(a), bare(b))
}

func (s *strategy[T, S, P]) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	o := obj.(P)
	errs := apivalidation.ValidateObjectMetaAccessor(o, !s.Cluster, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if s.Definition.Validate != nil {
		errs = append(errs, s.Definition.Validate(o)...)
	}
	return errs
}

func (s *strategy[T, S, P]) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	errs := validateMetaUpdate(obj.(P), old.(P), !s.Cluster)
	if s.Definition.ValidateUpdate != nil {
		errs = append(errs, s.Definition.ValidateUpdate(obj.(P), old.(P))...)
	} else if s.Definition.Validate != nil {
		errs = append(errs, s.Definition.Validate(obj.(P))...)
	}
	return errs
}

func validateMetaUpdate(o, old client.Object, namespaced bool) field.ErrorList {
	path := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(o, namespaced, apivalidation.NameIsDNSSubdomain, path)
	return append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(o, old, path)...)
}

// GetResetFields says what server-side apply must not own through the main resource.
func (s *strategy[T, S, P]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.status == nil {
		return nil
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.Kind.GroupVersion().String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// statusStrategy is the strategy of the status subresource.
type statusStrategy[T, S any, P withStatus[T]] struct{ *strategy[T, S, P] }

// PrepareForUpdate keeps all of the old object but its status and who manages it.
func (s *statusStrategy[T, S, P]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	o := obj.(P)
	status, managed, rv := *s.status(o), o.GetManagedFields(), o.GetResourceVersion()
	*o = *old.DeepCopyObject().(P)
	*s.status(o) = status
	o.SetManagedFields(managed)
	o.SetResourceVersion(rv)
}

func (s *statusStrategy[T, S, P]) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	errs := validateMetaUpdate(obj.(P), old.(P), !s.Cluster)
	if s.ValidateStatus != nil {
		errs = append(errs, s.ValidateStatus(obj.(P), old.(P))...)
	}
	return errs
}

// GetResetFields says what server-side apply must not own through the status subresource.
func (s *statusStrategy[T, S, P]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.Kind.GroupVersion().String()): fieldpath.NewSet(fieldpath.MakePathOrDie("spec")),
	}
}
