// Package own makes the rows of Coracle's own kinds from their types, defaults, validation and columns under apis.
// It contains only pure functions.
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

// Definition defines one of Coracle's own kinds; Row makes its row. Kind, Plural, New and NewList are required.
// Functions may be nil. Metadata is validated as upstream does.
type Definition[P client.Object] struct {
	Kind                  schema.GroupVersionKind
	Plural                string // lower case; the singular is the lower-case kind
	ShortNames            []string
	Categories            []string
	Cluster               bool // cluster-scoped
	New                   func() P
	NewList               func() client.ObjectList
	Default               func(P)
	Validate              func(P) field.ErrorList
	ValidateUpdate        func(obj, old P) field.ErrorList
	ValidateStatus        func(obj, old P) field.ErrorList
	Prepare               func(obj, old P)   // before a write is compared and validated; old is nil for a create
	Changed               func(obj, old P)   // on updates that increment the generation
	PrepareStatus         func(obj, old P)   // before a write to the status is validated
	Fields                func(P) fields.Set // further selectable fields; always the same keys
	Columns               func() []metav1.TableColumnDefinition
	Cells                 func(P, time.Time) []any
	AllowCreateOnUpdate   bool
	RequireUpdateRevision bool   // updates need a resourceVersion
	Source                string // Go source of the types; kubectl explain shows its comments
}

// withStatus constrains a type parameter to pointers to T that implement client.Object.
type withStatus[T any] interface {
	client.Object
	*T
}

// Row returns the row of one of Coracle's own kinds. A write to the object does not change its status, and a write
// to the status subresource changes nothing else. status returns a pointer to an object's status; it is nil if the
// kind has no status. The generation counts changes of everything except status and metadata.
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
		Keys:             d.Kind.Group + "/" + d.Plural, // as for custom resources upstream
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

// strategy is the strategy of the main resource of Coracle's own kinds.
type strategy[T, S any, P withStatus[T]] struct {
	names.NameGenerator
	Definition[P]
	status func(P) *S
}

// ObjectKinds and Recognizes implement runtime.ObjectTyper without a scheme.
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

// Canonicalize does nothing: objects are stored as validated.
func (s *strategy[T, S, P]) Canonicalize(runtime.Object) {}

func (s *strategy[T, S, P]) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (s *strategy[T, S, P]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// PrepareForCreate sets the generation and resets the status to its defaults.
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
	if s.Prepare != nil {
		s.Prepare(o, nil)
	}
}

// PrepareForUpdate preserves the status and increments the generation if the spec changes.
func (s *strategy[T, S, P]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	o, was := obj.(P), old.(P)
	if s.status != nil {
		*s.status(o) = *s.status(was)
	}
	if s.Prepare != nil {
		s.Prepare(o, was)
	}
	o.SetGeneration(was.GetGeneration())
	if (o.GetDeletionTimestamp() == nil) != (was.GetDeletionTimestamp() == nil) || !s.sameSpec(o, was) {
		o.SetGeneration(was.GetGeneration() + 1)
		if s.Changed != nil {
			s.Changed(o, was)
		}
	}
}

// sameSpec compares everything but kind, metadata and status.
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
	errs := apivalidation.ValidateObjectMetaAccessor(o, !s.Cluster, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))
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

// GetResetFields returns the fields that server-side apply must not own through the main resource.
func (s *strategy[T, S, P]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.status == nil {
		return nil
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.Kind.GroupVersion().String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

type statusStrategy[T, S any, P withStatus[T]] struct{ *strategy[T, S, P] }

// PrepareForUpdate preserves the old object except for its status and managed fields.
func (s *statusStrategy[T, S, P]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	o := obj.(P)
	status, managed, rv := *s.status(o), o.GetManagedFields(), o.GetResourceVersion()
	*o = *old.DeepCopyObject().(P)
	*s.status(o) = status
	o.SetManagedFields(managed)
	o.SetResourceVersion(rv)
	if s.PrepareStatus != nil {
		s.PrepareStatus(o, old.(P))
	}
}

func (s *statusStrategy[T, S, P]) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	errs := validateMetaUpdate(obj.(P), old.(P), !s.Cluster)
	if s.ValidateStatus != nil {
		errs = append(errs, s.ValidateStatus(obj.(P), old.(P))...)
	}
	return errs
}

// GetResetFields returns the fields that server-side apply must not own through the status subresource.
func (s *statusStrategy[T, S, P]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.Kind.GroupVersion().String()): fieldpath.NewSet(fieldpath.MakePathOrDie("spec")),
	}
}
