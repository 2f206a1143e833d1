package local

import (
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// form is the Go representation of objects.
type form int

const (
	native   form = iota // the kind's Go type, or unstructured if it has none
	metadata             // metadata only
	untyped              // unstructured, although the kind has a Go type
)

// row returns the row of an object or list, and its form.
func (s *Clients) row(obj runtime.Object) (*kind.Resource, form, error) {
	t := s.kinds.Table()
	if r := t.ByType(obj); r != nil && !r.Computed {
		return r, native, nil
	}
	gvk, err := apiutil.GVKForObject(obj, s.scheme)
	if err != nil {
		return nil, native, err
	}
	var as form
	switch obj.(type) {
	case *metav1.PartialObjectMetadata:
		as = metadata
	case *metav1.PartialObjectMetadataList:
		as, gvk.Kind = metadata, strings.TrimSuffix(gvk.Kind, "List")
	case *unstructured.Unstructured:
		as = untyped
	case *unstructured.UnstructuredList:
		as, gvk.Kind = untyped, strings.TrimSuffix(gvk.Kind, "List")
	default:
		return nil, native, noKind(gvk)
	}
	r := t.ByGVK(gvk)
	if r == nil {
		return nil, as, noKind(gvk)
	}
	if as == untyped && r.Unstructured() {
		as = native
	}
	return r, as, nil
}

// view returns a function that converts cached objects to the row's version and a form, or nil if no conversion is
// needed. Results share memory with the cache.
func (s *Clients) view(row *kind.Resource, as form) viewFunc {
	version := func(o ctrl.Object) (ctrl.Object, error) {
		if row.Unpack != nil {
			o = row.Unpack(o)
		}
		// The registry's results are already converted.
		if row.Serves(o) || o.GetObjectKind().GroupVersionKind() == row.GroupVersionKind {
			return o, nil
		}
		return row.From(o)
	}
	switch {
	case as == metadata:
		return func(o ctrl.Object) (ctrl.Object, error) { return metadataOf(row, o) }
	case as == untyped:
		return func(o ctrl.Object) (ctrl.Object, error) {
			o, err := version(o)
			if err != nil {
				return nil, err
			}
			return unstructuredOf(o)
		}
	case row.StoredAs != nil || row.PerVersion || row.Unpack != nil:
		return version
	}
	return nil
}

// metadataOf returns an object's metadata. It shares memory with the object.
func metadataOf(row *kind.Resource, o ctrl.Object) (*metav1.PartialObjectMetadata, error) {
	p := &metav1.PartialObjectMetadata{}
	switch o := o.(type) {
	case *unstructured.Unstructured:
		m, _ := o.Object["metadata"].(map[string]any)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &p.ObjectMeta); err != nil {
			return nil, err
		}
	case metav1.ObjectMetaAccessor:
		if m, ok := o.GetObjectMeta().(*metav1.ObjectMeta); ok {
			p.ObjectMeta = *m
		}
	}
	p.SetGroupVersionKind(row.GroupVersionKind)
	return p, nil
}

// unstructuredOf converts a typed object to an unstructured one that shares no memory with it.
func unstructuredOf(o runtime.Object) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: m}, nil
}

// apart returns an object whose outermost level may be modified. An unstructured object is a map, so it must be
// copied.
func apart(o ctrl.Object) ctrl.Object {
	if u, ok := o.(*unstructured.Unstructured); ok {
		return u.DeepCopy()
	}
	return o
}

// body returns a copy of the caller's object to write to the target, as the kind's Go type if there is one.
func body(t registry.Target, obj ctrl.Object) (runtime.Object, error) {
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		// A write of metadata alone would clear all other fields.
		return nil, apierrors.NewBadRequest("an object with metadata alone cannot be created or updated: patch it, or use " +
			"the kind's own type")
	case *unstructured.Unstructured:
		var out runtime.Object
		if sub := t.Resource.Subresource(t.Subresource); sub != nil && sub.New != nil {
			out = sub.New()
		} else {
			out = t.Resource.New()
		}
		if _, ok := out.(*unstructured.Unstructured); !ok {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			return out, nil
		}
		out = o.DeepCopy()
		if coerce := t.Resource.Coerce; coerce != nil {
			if _, err := coerce(out.(*unstructured.Unstructured), kind.Coercion{}); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		return out, nil
	}
	return obj.DeepCopyObject(), nil
}

// answer copies the result of a write into the caller's object, which the caller may then modify.
func (c *userClient) answer(into runtime.Object, res registry.Result, err error) error {
	if err != nil {
		return err
	}
	out, err := res.Value()
	if err != nil {
		return err
	}
	if _, ok := out.(*metav1.Status); ok {
		return nil // bindings and evictions return only a Status
	}
	o, ok := out.(ctrl.Object)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("the call returned a %T", out))
	}
	if row, as, err := c.row(into); err == nil && as == metadata {
		if o, err = metadataOf(row, o); err != nil {
			return err
		}
	}
	if u, ok := into.(*unstructured.Unstructured); ok {
		made, err := unstructuredOf(o)
		if err != nil {
			return err
		}
		u.Object = made.Object
		return nil
	}
	return set(into, o.DeepCopyObject())
}

// set copies the outermost struct.
func set(into, from runtime.Object) error {
	a, b := reflect.ValueOf(into), reflect.ValueOf(from)
	if a.Type() != b.Type() {
		return fmt.Errorf("cannot copy a %T into a %T", from, into)
	}
	a.Elem().Set(b.Elem())
	return nil
}
