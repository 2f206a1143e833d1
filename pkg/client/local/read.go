package local

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/registry"
)

// query finds what a list asks for: through an index that IndexField made, if the field selector names one.
func (s *Clients) query(row *kind.Resource, o *ctrl.ListOptions) ([]*cache.Entry, int64, error) {
	type want struct {
		values func(ctrl.Object) []string
		value  string
	}
	var indexed []want
	var first string
	rest := o.FieldSelector
	if rest != nil && !rest.Empty() {
		var others []fields.Selector
		for _, r := range rest.Requirements() {
			f := s.index(stored(row), fieldIndex(r.Field))
			if f == nil {
				one := fields.OneTermEqualSelector(r.Field, r.Value)
				if r.Operator == selection.NotEquals {
					one = fields.OneTermNotEqualSelector(r.Field, r.Value)
				}
				others = append(others, one)
				continue
			}
			if r.Operator == selection.NotEquals {
				return nil, 0, apierrors.NewBadRequest(fmt.Sprintf("the index of %s can be asked for one value only, not for all others", r.Field))
			}
			if len(indexed) == 0 {
				first = fieldIndex(r.Field)
			}
			indexed = append(indexed, want{f, r.Value})
		}
		var err error
		if rest, err = row.Selector(fields.AndSelectors(others...)); err != nil {
			return nil, 0, apierrors.NewBadRequest(err.Error())
		}
	}
	if len(indexed) == 0 {
		entries, rev := s.cache.List(stored(row), cache.Query{Namespace: o.Namespace, Labels: o.LabelSelector, Fields: rest})
		return entries, rev, nil
	}
	entries, rev, err := s.cache.ByIndex(stored(row), first, indexed[0].value)
	if err != nil {
		return nil, 0, err
	}
	entries = slices.DeleteFunc(entries, func(e *cache.Entry) bool {
		for _, w := range indexed[1:] {
			if !slices.Contains(w.values(e.Object), w.value) {
				return true
			}
		}
		return o.Namespace != "" && e.Object.GetNamespace() != o.Namespace ||
			o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(e.Object.GetLabels())) ||
			!rest.Empty() && !rest.Matches(stored(row).Fields(e.Object))
	})
	return entries, rev, nil
}

// fieldIndex is the cache's name of the index that IndexField makes for a field.
func fieldIndex(field string) string { return "field:" + field }

// row finds the kind of an object or a list. partial tells that only metadata is asked for.
func (s *Clients) row(obj runtime.Object) (row *kind.Resource, partial bool, err error) {
	if r := s.kinds.Table().ByType(obj); r != nil {
		return r, false, nil
	}
	switch obj.(type) {
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		gvk, err := apiutil.GVKForObject(obj, client.Scheme())
		if err != nil {
			return nil, true, err
		}
		if _, list := obj.(*metav1.PartialObjectMetadataList); list {
			gvk.Kind = gvk.Kind[:len(gvk.Kind)-len("List")]
		}
		if r := s.kinds.Table().ByGVK(gvk); r != nil {
			return r, true, nil
		}
		return nil, true, noKind(gvk)
	case runtime.Unstructured:
		return nil, false, fmt.Errorf("the in-process client has no unstructured objects: use the Go type of %s, or a client over HTTP",
			obj.GetObjectKind().GroupVersionKind())
	}
	gvk, err := apiutil.GVKForObject(obj, client.Scheme())
	if err != nil {
		return nil, false, err
	}
	return nil, false, noKind(gvk)
}

// stored is the row whose table in the cache holds row's objects.
func stored(row *kind.Resource) *kind.Resource { return row.Stored() }

// view says how the cache's objects become those of row: as they are, as metadata alone, or converted. Nil is as they are.
func (s *Clients) view(row *kind.Resource, partial bool) func(ctrl.Object) (ctrl.Object, error) {
	switch {
	case partial:
		return func(o ctrl.Object) (ctrl.Object, error) { return metadata(row, o), nil }
	case row.StoredAs != nil:
		return func(o ctrl.Object) (ctrl.Object, error) {
			if o.GetObjectKind().GroupVersionKind() == row.GroupVersionKind { // the registry's own answers are converted already
				return o, nil
			}
			return row.From(o)
		}
	}
	return nil
}

// Get reads from the cache. obj shares with it all but the outermost struct.
func (c *userClient) Get(ctx context.Context, key ctrl.ObjectKey, obj ctrl.Object, opts ...ctrl.GetOption) error {
	row, partial, err := c.row(obj)
	if err != nil {
		return err
	}
	ns := key.Namespace
	if !row.Namespaced {
		ns = ""
	}
	e := c.cache.Get(stored(row), ns, key.Name)
	if e == nil {
		return apierrors.NewNotFound(row.GR(), key.Name)
	}
	o := e.Object
	if view := c.view(row, partial); view != nil {
		if o, err = view(o); err != nil {
			return err
		}
	}
	return set(obj, o)
}

// List reads from the cache; with a limit or a continuation it goes through the registry, which hands out the
// continuation. The items share with the cache all but their outermost struct.
func (c *userClient) List(ctx context.Context, list ctrl.ObjectList, opts ...ctrl.ListOption) error {
	row, partial, err := c.row(list)
	if err != nil {
		return err
	}
	o := (&ctrl.ListOptions{}).ApplyOptions(opts)
	if o.Limit > 0 || o.Continue != "" || o.Raw != nil {
		lo := o.AsListOptions()
		page, err := c.registry.List(c.as(ctx), registry.Target{Resource: row, Namespace: o.Namespace}, *lo)
		if err != nil {
			return err
		}
		list.SetContinue(page.Continue)
		list.SetRemainingItemCount(page.Remaining)
		return c.fill(list, page.Entries, page.Revision, row, partial)
	}
	entries, rev, err := c.query(row, o)
	if err != nil {
		return err
	}
	list.SetContinue("")
	list.SetRemainingItemCount(nil)
	return c.fill(list, entries, rev, row, partial)
}

// fill makes the items of a list.
func (c *userClient) fill(list ctrl.ObjectList, entries []*cache.Entry, rev int64, row *kind.Resource, partial bool) error {
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	slice := reflect.ValueOf(items).Elem()
	made := reflect.MakeSlice(slice.Type(), len(entries), len(entries))
	view := c.view(row, partial)
	for i, e := range entries {
		o := e.Object
		if view != nil {
			if o, err = view(o); err != nil {
				return err
			}
		}
		made.Index(i).Set(reflect.ValueOf(o).Elem())
	}
	slice.Set(made)
	list.SetResourceVersion(version(rev))
	return nil
}
