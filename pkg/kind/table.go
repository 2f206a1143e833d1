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

// Table is an immutable set of rows, one per served version of a kind.
type Table struct {
	rows    []*Resource // of stored kinds
	served  []*Resource // and of computed kinds
	byGVR   map[schema.GroupVersionResource]*Resource
	byGVK   map[schema.GroupVersionKind]*Resource
	byType  map[reflect.Type]*Resource
	storage map[string]stored // by Keys
}

// NewTable returns a Table of rows, and sets their Storage where it is nil. Duplicate rows, and resources with
// overlapping storage prefixes, are errors.
func NewTable(rows ...*Resource) (*Table, error) {
	t := &Table{
		rows:    make([]*Resource, 0, len(rows)),
		served:  make([]*Resource, 0, len(rows)),
		byGVR:   make(map[schema.GroupVersionResource]*Resource, len(rows)),
		byGVK:   make(map[schema.GroupVersionKind]*Resource, len(rows)),
		byType:  make(map[reflect.Type]*Resource, 2*len(rows)),
		storage: make(map[string]stored, len(rows)),
	}
	return t, t.addAll(rows)
}

// change returns a Table with rows removed and added. It copies the maps.
func (t *Table) change(remove, add []*Resource) (*Table, error) {
	n := &Table{
		rows:    slices.Clone(t.rows),
		served:  slices.Clone(t.served),
		byGVR:   maps.Clone(t.byGVR),
		byGVK:   maps.Clone(t.byGVK),
		byType:  maps.Clone(t.byType),
		storage: maps.Clone(t.storage),
	}
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
		same := func(other *Resource) bool { return other == r }
		n.rows, n.served = slices.DeleteFunc(n.rows, same), slices.DeleteFunc(n.served, same)
	}
	return n, n.addAll(add)
}

// stored is a stored resource, with the number of its rows in the table.
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
	// All Keys have one or two segments, so only one with two can be within another.
	for _, r := range rows {
		if r.Computed {
			continue
		}
		if first, _, two := strings.Cut(r.Storage.Keys, "/"); two && t.storage[first].Storage != nil {
			return fmt.Errorf("kinds: the storage prefix %q is within %q", r.Storage.Keys, first)
		} else if !two {
			for keys := range t.storage {
				if strings.HasPrefix(keys, first+"/") {
					return fmt.Errorf("kinds: the storage prefix %q is within %q", keys, first)
				}
			}
		}
	}
	return nil
}

// MustTable is NewTable for rows that are part of the program. It panics on errors.
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
		return fmt.Errorf("kinds: %s and %s have the same kind %s", other.GVR(), r.GVR(), r.GroupVersionKind)
	}
	t.served = append(t.served, r)
	t.byGVR[r.GVR()] = r
	if !r.Unstructured() {
		t.byType[reflect.TypeOf(r.New())] = r
		if r.NewList != nil {
			t.byType[reflect.TypeOf(r.NewList())] = r
		}
	}
	if r.Computed {
		return nil
	}
	t.byGVK[r.GroupVersionKind] = r
	as := r.Stored()
	if parts := strings.Split(as.Keys, "/"); len(parts) > 2 || slices.Contains(parts, "") {
		return fmt.Errorf("kinds: %s has the invalid storage prefix %q", as.GVR(), as.Keys)
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
		return fmt.Errorf("kinds: %s and %s have the same storage prefix, %q", s.GroupResource, as.GVR(), as.Keys)
	}
	t.storage[as.Keys] = stored{as.Storage, s.rows + 1}
	t.rows = append(t.rows, r)
	return nil
}

// Unstructured reports whether the kind's objects have no Go type.
func (r *Resource) Unstructured() bool {
	_, ok := r.New().(runtime.Unstructured)
	return ok
}

// All returns the rows of stored kinds in the order they were added. The slice must not be modified.
func (t *Table) All() []*Resource { return t.rows }

// Served is All with the rows of computed kinds.
func (t *Table) Served() []*Resource { return t.served }

// ByGVR returns the row with this group, version and plural, or nil. It may be a computed kind.
func (t *Table) ByGVR(gvr schema.GroupVersionResource) *Resource { return t.byGVR[gvr] }

// ByGVK returns the row with this stored kind, or nil.
func (t *Table) ByGVK(gvk schema.GroupVersionKind) *Resource { return t.byGVK[gvk] }

// ByType returns the row whose objects or lists have the Go type of o, or nil. Unstructured objects have no row by
// type.
func (t *Table) ByType(o runtime.Object) *Resource { return t.byType[reflect.TypeOf(o)] }

// Holds reports whether a row of the Table has this Storage.
func (t *Table) Holds(s *Storage) bool { return t.storage[s.Keys].Storage == s }
