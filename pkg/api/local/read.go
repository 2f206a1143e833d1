package local

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// query returns the entries that a list selects. It uses the indexes of IndexField that the field selector names.
func (s *Clients) query(row *kind.Resource, o *ctrl.ListOptions) ([]*cache.Entry, int64, error) {
	if broken := s.cache.Unreadable(stored(row).Prefix(o.Namespace)); len(broken) > 0 {
		return nil, 0, registry.StoreReadError(row.GR(), broken)
	}
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
				return nil, 0, apierrors.NewBadRequest(fmt.Sprintf("the index of %s supports only equality", r.Field))
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

// fieldIndex returns the cache's name for the index of a field.
func fieldIndex(field string) string { return "field:" + field }

// stored returns the row whose objects are in the cache.
func stored(row *kind.Resource) *kind.Resource { return row.Stored() }

// Get reads from the cache. obj shares everything except its outermost struct with the cache.
func (c *userClient) Get(ctx context.Context, key ctrl.ObjectKey, obj ctrl.Object, opts ...ctrl.GetOption) error {
	row, as, err := c.row(obj)
	if err != nil {
		return err
	}
	ns := key.Namespace
	if !row.Namespaced {
		ns = ""
	}
	e := c.cache.Get(stored(row), ns, key.Name)
	if e == nil {
		if u, ok := c.cache.UnreadableAt(stored(row).Key(ns, key.Name)); ok {
			return registry.StoreReadError(row.GR(), []cache.Unreadable{u})
		}
		return apierrors.NewNotFound(row.GR(), key.Name)
	}
	o := e.Object
	if view := c.view(row, as); view != nil {
		if o, err = view(o); err != nil {
			return err
		}
	}
	return set(obj, apart(o))
}

// List reads from the cache, or from the registry if there is a limit or a continue token. Items share everything
// except their outermost struct with the cache.
func (c *userClient) List(ctx context.Context, list ctrl.ObjectList, opts ...ctrl.ListOption) error {
	row, as, err := c.row(list)
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
		return c.fill(list, page.Entries, page.Revision, row, as)
	}
	entries, rev, err := c.query(row, o)
	if err != nil {
		return err
	}
	list.SetContinue("")
	list.SetRemainingItemCount(nil)
	return c.fill(list, entries, rev, row, as)
}

func (c *userClient) fill(list ctrl.ObjectList, entries []*cache.Entry, rev int64, row *kind.Resource, as form) error {
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	slice := reflect.ValueOf(items).Elem()
	made := reflect.MakeSlice(slice.Type(), len(entries), len(entries))
	view := c.view(row, as)
	for i, e := range entries {
		o := e.Object
		if view != nil {
			if o, err = view(o); err != nil {
				return err
			}
		}
		made.Index(i).Set(reflect.ValueOf(apart(o)).Elem())
	}
	slice.Set(made)
	list.SetResourceVersion(version(rev))
	return nil
}
