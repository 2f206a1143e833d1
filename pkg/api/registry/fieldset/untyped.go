package fieldset

import (
	"maps"
	"slices"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// maxUntyped is the maximum number of values in an object without a Go type whose managed fields are computed here.
const maxUntyped = 10_000

// CreatedUntyped is Plan.Created for an unstructured object. types has the schema of its kind. Writes do not manage
// the fields in reset, which may only have top-level fields.
func CreatedUntyped(types managedfields.TypeConverter, obj *unstructured.Unstructured, reset *fieldpath.Set,
	w Writer) (entries []metav1.ManagedFieldsEntry, ok bool) {
	empty := &unstructured.Unstructured{Object: map[string]any{}}
	empty.SetGroupVersionKind(obj.GroupVersionKind())
	typed, err := types.ObjectToTyped(empty)
	if err != nil || reset != nil && !reset.Children.Empty() {
		return nil, false
	}
	u := untyped{schema: typed.Schema(), left: maxUntyped}
	if !u.object(typed.TypeRef(), obj.Object, reset) {
		return nil, false
	}
	set := u.set.text()
	if set == nil {
		return nil, true
	}
	return []metav1.ManagedFieldsEntry{w.entry(set)}, true
}

// untyped collects the fields of a new object. Its methods return false if the object does not fit its schema, or
// if only upstream's field manager can compute its fields.
type untyped struct {
	schema *schema.Schema
	set    writer
	left   int // number of values that may follow
}

func (u *untyped) object(ref schema.TypeRef, content map[string]any, reset *fieldpath.Set) bool {
	a, ok := u.schema.Resolve(ref)
	if !ok || a.Map == nil || a.Map.ElementRelationship == schema.Atomic {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(content)) {
		in, ok := fieldOf(a.Map, name)
		if !ok {
			return false
		}
		meta, isMap := content[name].(map[string]any)
		if name == "metadata" && isMap {
			ok = u.metadata(in, meta)
		} else {
			quiet := stripped.Members.Has(fieldpath.FieldNameElement(name)) ||
				reset != nil && reset.Members.Has(fieldpath.FieldNameElement(name))
			ok = name != "metadata" && u.value(in, fieldKey(name), content[name], quiet)
		}
		if !ok {
			return false
		}
	}
	return true
}

func (u *untyped) metadata(ref schema.TypeRef, content map[string]any) bool {
	a, ok := u.schema.Resolve(ref)
	if !ok || a.Map == nil || a.Map.ElementRelationship == schema.Atomic {
		return false
	}
	dropped, _ := stripped.Children.Get(fieldpath.FieldNameElement("metadata"))
	u.set.enter(`"f:metadata":`, false)
	defer u.set.exit()
	for _, name := range slices.Sorted(maps.Keys(content)) {
		in, ok := fieldOf(a.Map, name)
		if !ok || !u.value(in, fieldKey(name), content[name], dropped.Members.Has(fieldpath.FieldNameElement(name))) {
			return false
		}
	}
	return true
}

func fieldOf(t *schema.Map, name string) (schema.TypeRef, bool) {
	if f, ok := t.FindField(name); ok {
		return f.Type, utf8.ValidString(name)
	}
	// upstream's encoding of invalid UTF-8 is not stable
	return t.ElementType, t.ElementType != (schema.TypeRef{}) && utf8.ValidString(name)
}

// value adds a value and its content. If quiet, it only checks them: they are atomic or not managed.
func (u *untyped) value(ref schema.TypeRef, key string, v any, quiet bool) bool {
	a, ok := u.schema.Resolve(ref)
	if u.left--; !ok || u.left < 0 {
		return false
	}
	switch v := v.(type) {
	case nil:
		u.leaf(key, quiet)
		return a.Map != nil || a.Scalar != nil || a.List != nil
	case map[string]any:
		return a.Map != nil && u.entries(a.Map, key, v, quiet)
	case []any:
		return a.List != nil && u.list(a.List, key, v, quiet)
	}
	u.leaf(key, quiet)
	return a.Scalar != nil && fits(*a.Scalar, v)
}

func (u *untyped) leaf(key string, quiet bool) {
	if !quiet {
		u.set.leaf(key)
	}
}

// enter adds a field with fields below it. The caller adds them and then calls exit.
func (u *untyped) enter(key string, quiet bool) (exit func()) {
	if quiet {
		return func() {}
	}
	u.set.enter(key, true)
	return u.set.exit
}

func fits(want schema.Scalar, v any) bool {
	var is schema.Scalar
	switch v.(type) {
	case int64, float64:
		is = schema.Numeric
	case string:
		is = schema.String
	case bool:
		is = schema.Boolean
	default:
		return false
	}
	return want == is || want == schema.Untyped
}

func (u *untyped) entries(t *schema.Map, key string, v map[string]any, quiet bool) bool {
	if t.ElementRelationship == schema.Atomic || len(v) == 0 {
		u.leaf(key, quiet)
		quiet = true
	}
	defer u.enter(key, quiet)()
	for _, name := range slices.Sorted(maps.Keys(v)) {
		in, ok := fieldOf(t, name)
		if !ok || !u.value(in, fieldKey(name), v[name], quiet) {
			return false
		}
	}
	return true
}

type listed struct {
	identity
	v any
}

func (u *untyped) list(t *schema.List, key string, v []any, quiet bool) bool {
	if t.ElementRelationship != schema.Associative {
		u.leaf(key, quiet)
		return t.ElementRelationship == schema.Atomic &&
			!slices.ContainsFunc(v, func(in any) bool { return !u.value(t.ElementType, "", in, true) })
	}
	if len(v) == 0 {
		u.leaf(key, quiet)
		return true
	}
	names := slices.Sorted(slices.Values(t.Keys))
	if len(names) > maxKeys {
		return false
	}
	all := make([]listed, len(v))
	for i, in := range v {
		all[i].v = in
		if !u.identify(t, names, in, &all[i].identity) {
			return false
		}
	}
	slices.SortStableFunc(all, func(a, b listed) int { return a.compare(&b.identity) })
	defer u.enter(key, quiet)()
	for i := 0; i < len(all); {
		next := i + 1
		for next < len(all) && all[next].compare(&all[i].identity) == 0 {
			next++
		}
		var key string
		if len(names) == 0 {
			key = valueKey(all[i].identity[0])
		} else {
			key = itemKey(names, &all[i].identity)
		}
		several := next-i > 1 // they are managed as one
		if several {
			u.leaf(key, quiet)
		}
		for ; i < next; i++ {
			if !u.value(t.ElementType, key, all[i].v, quiet || several) {
				return false
			}
		}
	}
	return true
}

// identify sets an item's identity: the values of the fields in names, which are sorted, or its own value.
func (u *untyped) identify(t *schema.List, names []string, item any, id *identity) bool {
	if len(names) == 0 {
		return id[0].is(item)
	}
	content, ok := item.(map[string]any)
	a, known := u.schema.Resolve(t.ElementType)
	if !ok || !known || a.Map == nil {
		return false
	}
	some := false
	for i, name := range names {
		v, ok := content[name]
		if !ok {
			f, _ := a.Map.FindField(name)
			if v = f.Default; v == nil {
				continue
			}
		}
		if !id[i].is(v) {
			return false
		}
		some = true
	}
	return some
}

// is sets the value. It returns false if the value may have several encodings.
func (s *scalar) is(v any) bool {
	switch v := v.(type) {
	case string:
		*s = scalar{present: true, text: v}
		return utf8.ValidString(v)
	case int64:
		*s = scalar{present: true, number: true, n: v}
		return -exact < v && v < exact
	}
	return false
}
