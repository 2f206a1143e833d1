package fieldset

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Plan describes how to compare the objects of one kind, ignoring fields that a write does not manage. It is immutable.
type Plan struct {
	root   *node
	record *record // in place of root, for our own kinds
	kind   reflect.Type
	empty  runtime.Object
	pool   sync.Pool // of *walk
}

type shape int

const (
	leaf    shape = iota // a scalar or atomic value, managed as a whole
	fields               // a struct
	entries              // a map
	items                // a list that is a map
	members              // a list that is a set
)

// node describes how to compare values of one type at one place.
type node struct {
	shape  shape
	fields []field // sorted by JSON name
	elem   *node   // of entries, items and members
	keys   []field // of items, sorted by name
	names  []string
	of     []*string // the defaults of keys, nil for none
	equal  equality
}

type field struct {
	*value.FieldCacheEntry
	direct
	key   string
	node  *node
	typ   reflect.Type // type of a key field
	muted bool         // the write does not manage it, but upstream fails to record the write if its content is invalid
}

// stripped are the fields that are not managed in any object.
var stripped = fieldpath.NewSet(
	fieldpath.MakePathOrDie("apiVersion"), fieldpath.MakePathOrDie("kind"),
	fieldpath.MakePathOrDie("metadata", "name"), fieldpath.MakePathOrDie("metadata", "namespace"),
	fieldpath.MakePathOrDie("metadata", "creationTimestamp"), fieldpath.MakePathOrDie("metadata", "selfLink"),
	fieldpath.MakePathOrDie("metadata", "uid"), fieldpath.MakePathOrDie("metadata", "clusterName"),
	fieldpath.MakePathOrDie("metadata", "generation"), fieldpath.MakePathOrDie("metadata", "managedFields"),
	fieldpath.MakePathOrDie("metadata", "resourceVersion"),
)

// NewPlan creates the plan for objects like empty, an empty object of a built-in kind. Writes do not manage the
// fields in reset, or anything below them. It returns nil if upstream's field manager must be used.
func NewPlan(empty runtime.Object, reset *fieldpath.Set) *Plan {
	t := reflect.TypeOf(empty)
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	if !Describes(empty) {
		return nil
	}
	t = t.Elem()
	drop := stripped
	if reset != nil {
		drop = drop.Union(reset)
	}
	m := maker{made: map[reflect.Type]*node{}, equals: equalities{}}
	root := m.without(m.structure(t), drop)
	if root == nil || m.odd {
		return nil
	}
	p := &Plan{root: root, kind: t, empty: empty.DeepCopyObject()}
	p.pool.New = func() any { return &walk{} }
	return p
}

// Describes reports whether topology.txt contains the type of obj, so that NewPlan can make its plan.
func Describes(obj runtime.Object) bool {
	t := reflect.TypeOf(obj)
	if t == nil || t.Kind() != reflect.Pointer {
		return false
	}
	_, ok := topology()["kind "+typeName(t.Elem())]
	return ok
}

type maker struct {
	made   map[reflect.Type]*node // of structs
	equals equalities
	odd    bool // a type is not supported by plans
}

// without returns a copy of n without the fields in drop and everything below them, or nil if field names cannot
// identify them.
func (m *maker) without(n *node, drop *fieldpath.Set) *node {
	if n.shape != fields {
		return nil
	}
	out := *n
	out.fields = nil
	for _, f := range n.fields {
		e := fieldpath.FieldNameElement(f.JsonName)
		if drop.Members.Has(e) {
			if f.muted = f.node.fallible(map[*node]bool{}); !f.muted {
				continue
			}
		}
		if inside, ok := drop.Children.Get(e); ok && f.node.shape != leaf {
			if f.node = m.without(f.node, inside); f.node == nil {
				return nil
			}
		}
		out.fields = append(out.fields, f)
	}
	return &out
}

func (m *maker) structure(t reflect.Type) *node {
	if n := m.made[t]; n != nil {
		return n
	}
	n := &node{shape: fields, equal: m.equals.of(t, false)}
	m.made[t] = n
	m.odd = m.odd || n.equal == nil
	for _, e := range value.TypeReflectEntryOf(t).OrderedFields() {
		ft := fieldType(t, e)
		n.fields = append(n.fields, field{
			FieldCacheEntry: e,
			direct:          directly(t, e),
			key:             fieldKey(e.JsonName),
			node:            m.node(ft, declared(t, e.JsonName, ft)),
		})
	}
	return n
}

// fallible reports whether a value may contain a list with items that lack all their key fields.
func (n *node) fallible(seen map[*node]bool) bool {
	if n == nil || seen[n] {
		return false
	}
	seen[n] = true
	if n.shape == items {
		known := false
		for k := range n.keys {
			known = known || n.of[k] != nil || !n.keys[k].CanOmit(reflect.Zero(n.keys[k].typ))
		}
		if !known {
			return true
		}
	}
	for i := range n.fields {
		if n.fields[i].node.fallible(seen) {
			return true
		}
	}
	return n.elem.fallible(seen)
}

// direct is fast access to a field: its place in the struct, and how to detect that it is omitted from JSON.
type direct struct {
	probe  probe
	sure   bool // the probe is exact
	offset uintptr
	index  int // in the struct itself; -1 if the field is in an embedded struct
}

// probe is the memory representation of an empty field that is omitted from JSON.
type probe int

const (
	unknown probe = iota // use the slow way
	word                 // a nil pointer, map or interface
	length               // a string or list without items
	byte1
	byte4
	byte8
)

func directly(t reflect.Type, e *value.FieldCacheEntry) direct {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct {
			if in := directly(f.Type, e); in.probe != unknown {
				return direct{in.probe, in.sure, f.Offset + in.offset, -1}
			}
		}
		if name != e.JsonName || !f.IsExported() {
			continue
		}
		for option := range strings.SplitSeq(options, ",") {
			if option == "omitempty" {
				return direct{probeOf(f.Type), f.Type.Kind() != reflect.Map, f.Offset, i}
			}
		}
	}
	return direct{}
}

func probeOf(t reflect.Type) probe {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Interface:
		return word
	case reflect.String, reflect.Slice:
		return length
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return byte1
	case reflect.Int32, reflect.Uint32:
		return byte4
	case reflect.Int, reflect.Int64:
		return byte8
	}
	return unknown
}

// empty reports whether the field of the struct at p is omitted from JSON. Unless d.sure, false means unknown.
func (d direct) empty(p unsafe.Pointer) bool {
	at := unsafe.Add(p, d.offset)
	switch d.probe {
	case word:
		return *(*uintptr)(at) == 0
	case length:
		return *(*int)(unsafe.Add(at, unsafe.Sizeof(uintptr(0)))) == 0
	case byte1:
		return *(*uint8)(at) == 0
	case byte4:
		return *(*uint32)(at) == 0
	case byte8:
		return *(*uint64)(at) == 0
	}
	return false
}

// fieldType returns the type of a field, which upstream's entry does not contain.
func fieldType(t reflect.Type, e *value.FieldCacheEntry) reflect.Type {
	return e.GetFrom(reflect.New(t).Elem()).Type()
}

// declared returns the rule for a field of a struct, or else the rule for its type.
func declared(in reflect.Type, name string, t reflect.Type) rule {
	if r, ok := topology()[typeName(in)+"."+name]; ok {
		return r
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return topology()[typeName(t)]
}

func (m *maker) node(t reflect.Type, r rule) *node {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	n := &node{}
	switch {
	case value.TypeReflectEntryOf(t).CanConvertToUnstructured(), r.atomic:
	case t.Kind() == reflect.Struct:
		return m.structure(t)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		n.shape = entries
		n.elem = m.node(t.Elem(), topology()[typeName(t.Elem())])
	case t.Kind() == reflect.Slice && (r.set || r.keys != nil):
		elem := t.Elem()
		n.shape, n.elem = members, m.node(elem, topology()[typeName(elem)])
		if r.keys != nil {
			m.identified(n, elem, r)
		}
	}
	n.equal = m.equals.of(t, false)
	if n.equal == nil {
		m.odd = true
	}
	return n
}

func (m *maker) identified(n *node, elem reflect.Type, r rule) {
	n.shape = items
	known := value.TypeReflectEntryOf(elem).Fields()
	type named struct {
		name     string
		fallback *string
	}
	all := make([]named, len(r.keys))
	for i := range r.keys {
		all[i] = named{r.keys[i], r.defaults[i]}
	}
	slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.name, b.name) })
	for _, k := range all {
		e := known[k.name]
		if e == nil || elem.Kind() != reflect.Struct || len(all) > maxKeys {
			m.odd = true
			return
		}
		n.keys, n.names, n.of = append(n.keys, field{
			FieldCacheEntry: e,
			direct:          directly(elem, e),
			typ:             fieldType(elem, e),
		}), append(n.names, k.name), append(n.of, k.fallback)
	}
}
