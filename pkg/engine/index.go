package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

type indexes struct {
	scheme *runtime.Scheme
	values map[string]func(client.Object) []string // by kind and name
}

func indexKey(kind, name string) string { return kind + "/" + name }

// index registers the indexes with the cache, except for kinds that the API server lacks. An existing index of the
// same name, from another reconciler or an earlier start, is shared, since a name means the same function everywhere.
func index(ctx context.Context, c cc.Interface, want []Index, absent map[schema.GroupKind]bool) (*indexes, error) {
	ix := &indexes{scheme: c.Scheme(), values: map[string]func(client.Object) []string{}}
	for _, w := range want {
		gvk, err := apiutil.GVKForObject(w.Object, c.Scheme())
		if err != nil {
			return nil, err
		}
		ix.values[indexKey(gvk.Kind, w.Name)] = w.Values
		if absent[gvk.GroupKind()] {
			continue
		}
		if err := c.Cache().IndexField(ctx, w.Object, w.Name, w.Values); err != nil &&
			!strings.Contains(err.Error(), "conflict") {
			return nil, fmt.Errorf("index %s of %s: %w", w.Name, gvk.Kind, err)
		}
	}
	return ix, nil
}

func (ix *indexes) list(ctx context.Context, r client.Reader, list client.ObjectList,
	namespace, name, value string) error {
	gvk, err := apiutil.GVKForObject(list, ix.scheme)
	if err != nil {
		return err
	}
	values := ix.values[indexKey(strings.TrimSuffix(gvk.Kind, "List"), name)]
	if values == nil {
		return fmt.Errorf("no index %s of %s is declared", name, gvk.Kind)
	}
	if err := r.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{name: value}); err != nil {
		return err
	}
	// A cache may return objects whose values only collide by hash.
	return keep(list, func(o client.Object) bool { return slices.Contains(values(o), value) })
}

// keep drops the items for which ok is false, without deep-copying the others.
func keep(list client.ObjectList, ok func(client.Object) bool) error {
	ptr, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	items := reflect.ValueOf(ptr).Elem()
	n := 0
	for i := range items.Len() {
		o, isObject := items.Index(i).Addr().Interface().(client.Object)
		if isObject && !ok(o) {
			continue
		}
		if n != i {
			items.Index(n).Set(items.Index(i))
		}
		n++
	}
	items.SetLen(n)
	return nil
}
