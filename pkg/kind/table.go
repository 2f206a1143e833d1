package kind

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Table is an immutable set of kinds, one row per served version.
type Table struct {
	rows    []*Resource
	byGVR   map[schema.GroupVersionResource]*Resource
	byGVK   map[schema.GroupVersionKind]*Resource
	byType  map[reflect.Type]*Resource
	storage map[string]stored // by Keys
}

// NewTable makes a table of rows, and gives those a Storage that have none. Two rows with one name, or two resources with
// overlapping storage prefixes, are an error.
func NewTable(rows ...*Resource) (*Table, error) {
	t := &Table{
		rows: make([]*Resource, 0, len(rows)), byGVR: make(map[schema.GroupVersionResource]*Resource, len(rows)), byGVK: make(map[schema.GroupVersionKind]*Resource, len(rows)),
		byType: make(map[reflect.Type]*Resource, 2*len(rows)), storage: make(map[string]stored, len(rows)),
	}
	return t, t.addAll(rows)
}

// change is a table without some of the rows, and with others. Its cost is that of copying the maps.
func (t *Table) change(remove, add []*Resource) (*Table, error) {
	n := &Table{rows: slices.Clone(t.rows), byGVR: maps.Clone(t.byGVR), byGVK: maps.Clone(t.byGVK), byType: maps.Clone(t.byType), storage: maps.Clone(t.storage)}
	for _, r := range remove {
		if n.byGVR[r.GVR()] != r {
			return nil, fmt.Errorf("%w: %s", ErrNoRow, r.GVR())
		}
		delete(n.byGVR, r.GVR())
		delete(n.byGVK, r.GroupVersionKind)
		if !r.Unstructured() {
			delete(n.byType, reflect.TypeOf(r.New()))
			delete(n.byType, reflect.TypeOf(r.NewList()))
		}
		s := n.storage[r.Storage.Keys]
		if s.rows--; s.rows == 0 {
			delete(n.storage, r.Storage.Keys)
		} else {
			n.storage[r.Storage.Keys] = s
		}
		i := slices.Index(n.rows, r)
		n.rows = slices.Delete(n.rows, i, i+1)
	}
	return n, n.addAll(add)
}

// stored is a resource that is stored, and how many rows of the table have it.
type stored struct {
	*Storage
	rows int
}

func (t *Table) addAll(rows []*Resource) error {
	for _, r := range rows {
		if err := t.add(r); err != nil {
			return err
		}
	}
	// All Keys have one or two parts, so only one of two parts can lie within another.
	for _, r := range rows {
		if first, _, two := strings.Cut(r.Storage.Keys, "/"); two && t.storage[first].Storage != nil {
			return fmt.Errorf("kinds: the storage prefix %q lies within %q", r.Storage.Keys, first)
		} else if !two {
			for keys := range t.storage {
				if strings.HasPrefix(keys, first+"/") {
					return fmt.Errorf("kinds: the storage prefix %q lies within %q", keys, first)
				}
			}
		}
	}
	return nil
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
	as := r.Stored()
	if parts := strings.Split(as.Keys, "/"); len(parts) > 2 || slices.Contains(parts, "") {
		return fmt.Errorf("kinds: %s has the storage prefix %q", as.GVR(), as.Keys)
	}
	if as.Storage == nil {
		as.Storage = &Storage{GroupResource: as.GR(), Keys: as.Keys}
	}
	if r.Storage == nil {
		r.Storage = as.Storage
	}
	if r.Storage != as.Storage || as.Storage.Keys != as.Keys {
		return fmt.Errorf("kinds: %s does not have the storage of %s", r.GVR(), as.GVR())
	}
	s := t.storage[as.Keys]
	if s.Storage != nil && s.Storage != as.Storage {
		return fmt.Errorf("kinds: %s and %s have one storage prefix, %q", s.GroupResource, as.GVR(), as.Keys)
	}
	t.storage[as.Keys] = stored{as.Storage, s.rows + 1}
	t.rows = append(t.rows, r)
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
func (t *Table) Holds(s *Storage) bool { return t.storage[s.Keys].Storage == s }
