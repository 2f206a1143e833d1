package registry

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// objects gives admission plugins access to a table's kinds: it creates, defaults and converts objects, and maps
// resources to their equivalents in other versions. Kinds in upstream's scheme use the scheme, all others their rows.
type objects struct {
	table       *kind.Table
	equivalents runtime.EquivalentResourceMapper
}

var _ admission.ObjectInterfaces = (*objects)(nil)

// objectsOf creates the objects of a table. It is used with kind.Derive.
func objectsOf(t *kind.Table) *objects {
	// Resources with the same storage prefix are versions of each other, as in upstream.
	keys := map[schema.GroupResource]string{}
	for _, r := range t.All() {
		keys[r.GR()] = r.Stored().Keys
	}
	equivalents := runtime.NewEquivalentResourceRegistryWithIdentity(func(gr schema.GroupResource) string {
		if k, ok := keys[gr]; ok {
			return k
		}
		return gr.String()
	})
	for _, r := range t.All() {
		equivalents.RegisterKindFor(r.GVR(), "", r.GroupVersionKind)
		if r.Status != nil {
			equivalents.RegisterKindFor(r.GVR(), "status", r.GroupVersionKind)
		}
		for i := range r.Subresources {
			s := &r.Subresources[i]
			equivalents.RegisterKindFor(r.GVR(), s.Name, s.GroupVersionKind)
		}
	}
	return &objects{t, equivalents}
}

func (o *objects) GetObjectCreater() runtime.ObjectCreater     { return o }
func (o *objects) GetObjectTyper() runtime.ObjectTyper         { return o }
func (o *objects) GetObjectDefaulter() runtime.ObjectDefaulter { return o }
func (o *objects) GetObjectConvertor() runtime.ObjectConvertor { return o }
func (o *objects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return o.equivalents
}

// row returns the row of a kind that is not in upstream's scheme.
func (o *objects) row(gvk schema.GroupVersionKind) (*kind.Resource, error) {
	if r := o.table.ByGVK(gvk); r != nil {
		return r, nil
	}
	return nil, runtime.NewNotRegisteredErrForKind("kinds", gvk)
}

// rowOf is row for an object. Objects created by Go code may lack their kind.
func (o *objects) rowOf(obj runtime.Object) (*kind.Resource, error) {
	if gvk := obj.GetObjectKind().GroupVersionKind(); !gvk.Empty() {
		return o.row(gvk)
	}
	if r := o.table.ByType(obj); r != nil {
		return r, nil
	}
	return nil, runtime.NewNotRegisteredErrForType("kinds", reflect.TypeOf(obj))
}

func (o *objects) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if legacyscheme.Scheme.Recognizes(gvk) {
		return legacyscheme.Scheme.New(gvk)
	}
	r, err := o.row(gvk)
	if err != nil {
		return nil, err
	}
	return r.New(), nil
}

func (o *objects) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if kinds, unversioned, err := legacyscheme.Scheme.ObjectKinds(obj); err == nil {
		return kinds, unversioned, nil
	}
	r, err := o.rowOf(obj)
	if err != nil {
		return nil, false, err
	}
	return []schema.GroupVersionKind{r.GroupVersionKind}, false, nil
}

func (o *objects) Recognizes(gvk schema.GroupVersionKind) bool {
	return legacyscheme.Scheme.Recognizes(gvk) || o.table.ByGVK(gvk) != nil
}

func (o *objects) Default(obj runtime.Object) {
	if r, err := o.rowOf(obj); err == nil && r.Default != nil && !r.Proto {
		r.Default(obj)
		return
	}
	legacyscheme.Scheme.Default(obj)
}

// Convert sets out to in, converted to out's version, which may be the internal one. It coerces an unstructured out
// to its schema: webhooks may have added unknown fields. It implements runtime.ObjectConvertor.
func (o *objects) Convert(in, out, context any) error {
	from, ok := in.(runtime.Object)
	to, same := out.(runtime.Object)
	if !ok || !same || known(from) {
		return legacyscheme.Scheme.Convert(in, out, context)
	}
	result, err := o.converted(from, to)
	if err != nil {
		return err
	}
	if u, ok := to.(*unstructured.Unstructured); ok {
		made, ok := result.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("a %T is not an unstructured object", result)
		}
		u.Object = made.Object
		if r, err := o.rowOf(u); err == nil && r.Coerce != nil {
			_, err = r.Coerce(u, kind.Coercion{})
			return err
		}
		return nil
	}
	if reflect.TypeOf(result) != reflect.TypeOf(to) {
		return fmt.Errorf("cannot convert a %T to a %T", from, to)
	}
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(result).Elem())
	return nil
}

// known reports whether an object's type is in upstream's scheme.
func known(o runtime.Object) bool {
	if _, ok := o.(runtime.Unstructured); ok { // the scheme accepts an unstructured object of any kind
		return legacyscheme.Scheme.Recognizes(o.GetObjectKind().GroupVersionKind())
	}
	_, _, err := legacyscheme.Scheme.ObjectKinds(o)
	return err == nil
}

func (o *objects) converted(from, to runtime.Object) (runtime.Object, error) {
	source, notVersioned := o.rowOf(from)
	target, internal := o.rowOf(to)
	external, ok := from.(client.Object)
	switch {
	case notVersioned == nil && internal == nil && ok:
		return o.convert(external, source, target.GroupVersionKind)
	case notVersioned == nil && ok:
		return source.Internal(external)
	case internal == nil:
		return target.External(from)
	}
	return nil, notVersioned
}

// convert converts an object of a Coracle or custom kind to another version, or returns it if to is empty.
func (o *objects) convert(obj client.Object, source *kind.Resource, to schema.GroupVersionKind) (client.Object, error) {
	if to.Empty() || to == source.GroupVersionKind {
		return obj, nil
	}
	target, err := o.row(to)
	if err != nil {
		return nil, err
	}
	hub, err := source.Internal(obj)
	if err != nil {
		return nil, err
	}
	return target.External(hub)
}

func (o *objects) ConvertToVersion(in runtime.Object, version runtime.GroupVersioner) (runtime.Object, error) {
	source, err := o.rowOf(in)
	obj, ok := in.(client.Object)
	if err != nil || source.Proto || !ok {
		return legacyscheme.Scheme.ConvertToVersion(in, version)
	}
	to, ok := version.KindForGroupVersionKinds([]schema.GroupVersionKind{source.GroupVersionKind})
	if !ok {
		return nil, runtime.NewNotRegisteredGVKErrForTarget("kinds", source.GroupVersionKind, version)
	}
	// An admission policy has changed a typed object, which made it unstructured.
	if u, ok := in.(*unstructured.Unstructured); ok && !source.Unstructured() {
		obj = source.New()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
			return nil, err
		}
		obj.GetObjectKind().SetGroupVersionKind(source.GroupVersionKind)
	}
	return o.convert(obj, source, to)
}

func (o *objects) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	return legacyscheme.Scheme.ConvertFieldLabel(gvk, label, value)
}
