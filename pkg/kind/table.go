package kind

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Table is an immutable set of rows.
type Table struct {
	rows    []*Resource
	byGVR   map[schema.GroupVersionResource]*Resource
	byGVK   map[schema.GroupVersionKind]*Resource
	byType  map[reflect.Type]*Resource
	storage map[string]*Storage // by Keys
}

// NewTable makes a table of rows, and gives those a Storage that have none. Two rows with one name, or two resources with
// overlapping storage prefixes, are an error.
func NewTable(rows ...*Resource) (*Table, error) {
	t := &Table{
		rows: slices.Clip(rows), byGVR: make(map[schema.GroupVersionResource]*Resource, len(rows)), byGVK: make(map[schema.GroupVersionKind]*Resource, len(rows)),
		byType: make(map[reflect.Type]*Resource, len(rows)), storage: make(map[string]*Storage, len(rows)),
	}
	for _, r := range rows {
		if err := t.add(r); err != nil {
			return nil, err
		}
	}
	for keys := range t.storage {
		for i := range keys {
			if keys[i] == '/' && t.storage[keys[:i]] != nil {
				return nil, fmt.Errorf("kinds: the storage prefix %q lies within %q", keys, keys[:i])
			}
		}
	}
	return t, nil
}

// MustTable is NewTable for rows that are part of the program. It panics on an error.
func MustTable(rows ...*Resource) *Table {
	t, err := NewTable(rows...)
	if err != nil {
		panic(err)
	}
	return t
}

func (t *Table) add(r *Resource) error {
	if other := t.byGVR[r.GVR()]; other != nil {
		return fmt.Errorf("kinds: two rows for %s", r.GVR())
	}
	if other := t.byGVK[r.GroupVersionKind]; other != nil {
		return fmt.Errorf("kinds: %s and %s are both of kind %s", other.GVR(), r.GVR(), r.GroupVersionKind)
	}
	stored := r.Stored()
	if stored.Keys == "" || strings.HasPrefix(stored.Keys, "/") || strings.HasSuffix(stored.Keys, "/") {
		return fmt.Errorf("kinds: %s has the storage prefix %q", stored.GVR(), stored.Keys)
	}
	if stored.Storage == nil {
		stored.Storage = &Storage{GroupResource: stored.GR(), Keys: stored.Keys}
	}
	if r.Storage == nil {
		r.Storage = stored.Storage
	}
	if r.Storage != stored.Storage || stored.Storage.Keys != stored.Keys {
		return fmt.Errorf("kinds: %s does not have the storage of %s", r.GVR(), stored.GVR())
	}
	if other := t.storage[stored.Keys]; other != nil && other != stored.Storage {
		return fmt.Errorf("kinds: %s and %s have one storage prefix, %q", other, stored.GVR(), stored.Keys)
	}
	t.storage[stored.Keys] = stored.Storage
	t.byGVR[r.GVR()], t.byGVK[r.GroupVersionKind] = r, r
	if !r.Unstructured() {
		t.byType[reflect.TypeOf(r.New())] = r
		t.byType[reflect.TypeOf(r.NewList())] = r
	}
	return nil
}

// Unstructured reports whether the kind's objects have no Go type of their own.
func (r *Resource) Unstructured() bool {
	_, ok := r.New().(runtime.Unstructured)
	return ok
}

// All lists the rows in the order in which they were added. The slice must not be changed.
func (t *Table) All() []*Resource { return t.rows }

// ByGVR returns the row of a path's group, version and resource, or nil.
func (t *Table) ByGVR(gvr schema.GroupVersionResource) *Resource { return t.byGVR[gvr] }

// ByGVK returns the row of an object's kind, or nil.
func (t *Table) ByGVK(gvk schema.GroupVersionKind) *Resource { return t.byGVK[gvk] }

// ByType returns the row whose objects, or lists, are of the Go type of o, or nil. Unstructured objects have no row of their own.
func (t *Table) ByType(o runtime.Object) *Resource { return t.byType[reflect.TypeOf(o)] }

// Holds reports whether a row of the table has this storage.
func (t *Table) Holds(s *Storage) bool { return t.storage[s.Keys] == s }
