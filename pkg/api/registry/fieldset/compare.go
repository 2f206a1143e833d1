package fieldset

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"k8s.io/apimachinery/pkg/runtime"
)

// walk is the state of one comparison.
type walk struct {
	changed, removed writer // the fields that were added or modified, and those that were removed
	odd              bool   // the plan cannot tell: use upstream's field manager
	items            []item
	names            []entry
}

// absent is the value of a field that an object does not have. A nil pointer, map or list that is encoded as null is
// not absent.
var absent reflect.Value

// compare returns the fields in which two objects differ, as FieldsV1; nil if there are none.
func (p *Plan) compare(old, obj runtime.Object) (changed, removed []byte, ok bool) {
	l, r := reflect.ValueOf(old), reflect.ValueOf(obj)
	if l.Kind() != reflect.Pointer || r.Kind() != reflect.Pointer || l.Type().Elem() != p.kind ||
		r.Type().Elem() != p.kind || l.IsNil() || r.IsNil() {
		return nil, nil, false
	}
	if p.record != nil {
		return p.record.compare(l, r)
	}
	w := p.pool.Get().(*walk)
	defer p.release(w)
	w.changed.reset()
	w.removed.reset()
	w.odd, w.items, w.names = false, w.items[:0], w.names[:0]
	w.fields(p.root, l.Elem(), r.Elem())
	if w.odd {
		return nil, nil, false
	}
	return w.changed.text(), w.removed.text(), true
}

// release returns the memory of a walk to the pool, unless it is large.
func (p *Plan) release(w *walk) {
	const most = 1 << 12
	if max(cap(w.items), cap(w.names), cap(w.changed.buf)/16, cap(w.removed.buf)/16) > most {
		return
	}
	clear(w.items[:cap(w.items)]) // so that they do not keep objects alive
	clear(w.names[:cap(w.names)])
	p.pool.Put(w)
}

// resolve dereferences a pointer. null reports that the value is encoded as null.
func resolve(v reflect.Value) (in reflect.Value, null bool) {
	if !v.IsValid() {
		return v, false
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v, true
		}
		v = v.Elem()
		if k := v.Kind(); (k == reflect.Map || k == reflect.Slice) && v.IsNil() {
			return v, true
		}
		return v, false
	case reflect.Map, reflect.Slice:
		return v, v.IsNil()
	}
	return v, false
}

// differ compares the values of a field; at least one is present.
func (w *walk) differ(n *node, key string, l, r reflect.Value) {
	l, noL := resolve(l)
	r, noR := resolve(r)
	if n.shape == leaf {
		switch {
		case !l.IsValid():
			w.changed.leaf(key)
		case !r.IsValid():
			w.removed.leaf(key)
		case noL || noR:
			if noL != noR {
				w.changed.leaf(key)
			}
		case !n.equal(w, l, r):
			w.changed.leaf(key)
		}
		return
	}
	w.changed.enter(key, !l.IsValid())
	w.removed.enter(key, !r.IsValid())
	both := l.IsValid() && r.IsValid()
	if noL {
		l = absent
	}
	if noR {
		r = absent
	}
	var some bool
	switch n.shape {
	case fields:
		some = w.fields(n, l, r)
	case entries:
		some = w.entries(n, l, r)
	default:
		some = w.list(n, l, r)
	}
	w.changed.exit()
	w.removed.exit()
	if !some && both && noL != noR { // null became empty, or the reverse
		w.changed.leaf(key)
	}
}

// fields compares structs; either may be absent. It reports whether either has a field.
func (w *walk) fields(n *node, l, r reflect.Value) (some bool) {
	left, right := place(l), place(r)
	for i := range n.fields {
		f := &n.fields[i]
		var x, y reflect.Value
		if left == nil {
			x = f.of(l)
		} else if !f.empty(left) {
			x = f.at(l)
		}
		if right == nil {
			y = f.of(r)
		} else if !f.empty(right) {
			y = f.at(r)
		}
		if !x.IsValid() && !y.IsValid() {
			continue
		}
		if f.muted {
			w.odd = w.odd || x.IsValid() && !x.IsZero() || y.IsValid() && !y.IsZero()
			continue
		}
		some = true
		w.differ(f.node, f.key, x, y)
	}
	return some
}

func place(v reflect.Value) unsafe.Pointer {
	if !v.CanAddr() {
		return nil
	}
	return unsafe.Pointer(v.UnsafeAddr())
}

// at is a faster of, for a field that is known not to be empty.
func (f *field) at(in reflect.Value) reflect.Value {
	if f.probe != unknown && f.sure && f.index >= 0 {
		return in.Field(f.index)
	}
	return f.of(in)
}

// of returns the field's value, or absent if it is omitted from JSON.
func (f *field) of(in reflect.Value) reflect.Value {
	if !in.IsValid() {
		return absent
	}
	v := f.GetFrom(in)
	if f.CanOmit(v) {
		return absent
	}
	return v
}

type entry struct {
	name string
	l, r reflect.Value
}

// entries compares maps, either of which may be absent. It reports whether either has an entry.
func (w *walk) entries(n *node, l, r reflect.Value) (some bool) {
	start := len(w.names)
	if l.IsValid() {
		for all := l.MapRange(); all.Next(); {
			e := entry{name: all.Key().String(), l: all.Value()}
			if r.IsValid() {
				e.r = r.MapIndex(all.Key())
			}
			w.names = append(w.names, e)
		}
	}
	if r.IsValid() {
		for all := r.MapRange(); all.Next(); {
			if !l.IsValid() || !l.MapIndex(all.Key()).IsValid() {
				w.names = append(w.names, entry{name: all.Key().String(), r: all.Value()})
			}
		}
	}
	end := len(w.names)
	slices.SortFunc(w.names[start:], func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for i := start; i < end; i++ {
		e := w.names[i]
		w.odd = w.odd || !utf8.ValidString(e.name)
		if n.elem.shape == leaf && e.l.IsValid() && e.r.IsValid() && e.l.Kind() != reflect.Pointer &&
			n.elem.equal(w, e.l, e.r) {
			continue // avoids building its key
		}
		w.differ(n.elem, fieldKey(e.name), e.l, e.r)
	}
	w.names = w.names[:start]
	return end > start
}

type item struct {
	identity
	v     reflect.Value
	right bool
}

// list compares lists that are maps or sets. It reports whether either list has an item.
func (w *walk) list(n *node, l, r reflect.Value) (some bool) {
	start := len(w.items)
	if !w.gather(n, l, false) || !w.gather(n, r, true) {
		w.odd = true
		w.items = w.items[:start]
		return true
	}
	end := len(w.items)
	// Items with the same identity become neighbours, the left ones first, each side in its order.
	slices.SortStableFunc(w.items[start:], func(a, b item) int { return a.compare(&b.identity) })
	for i := start; i < end; {
		next := i + 1
		for next < end && w.items[next].compare(&w.items[i].identity) == 0 {
			next++
		}
		w.same(n, i, next)
		i = next
	}
	w.items = w.items[:start]
	return end > start
}

// same compares the items with one identity. One side has several if the list has duplicates, which are managed as one.
func (w *walk) same(n *node, from, to int) {
	split := from
	for split < to && !w.items[split].right {
		split++
	}
	lefts, rights := split-from, to-split
	var l, r reflect.Value
	if lefts > 0 {
		l = w.items[from].v
	}
	if rights > 0 {
		r = w.items[split].v
	}
	if lefts == 1 && rights == 1 && n.shape == members {
		return
	}
	key := n.key(&w.items[from].identity)
	switch {
	case lefts <= 1 && rights <= 1:
		w.differ(n.elem, key, l, r)
	case lefts >= 2 && rights >= 2:
		if !w.alike(n, from, split, to) {
			w.changed.leaf(key)
		}
	case lefts >= 2:
		if rights == 1 {
			w.differ(n.elem, key, absent, r)
		}
		w.removed.leaf(key)
	default:
		if lefts == 1 {
			w.differ(n.elem, key, l, absent)
		}
		w.changed.leaf(key)
	}
}

func (w *walk) alike(n *node, from, split, to int) bool {
	if split-from != to-split {
		return false
	}
	for i := range split - from {
		if !n.elem.equal(w, w.items[from+i].v, w.items[split+i].v) {
			return false
		}
	}
	return true
}

func (n *node) key(id *identity) string {
	if n.shape == members {
		return valueKey(id[0])
	}
	return itemKey(n.names, id)
}

// gather appends the items of a list. It returns false if upstream could not identify an item.
func (w *walk) gather(n *node, list reflect.Value, right bool) bool {
	if !list.IsValid() {
		return true
	}
	for i := range list.Len() {
		v, null := resolve(list.Index(i))
		if null {
			return false
		}
		it := item{v: v, right: right}
		if n.shape == members {
			if !it.identity[0].set(v) {
				return false
			}
		} else if !n.identify(v, &it.identity) {
			return false
		}
		w.items = append(w.items, it)
	}
	return true
}

func (n *node) identify(v reflect.Value, id *identity) bool {
	some := false
	for k := range n.keys {
		if in := n.keys[k].of(v); in.IsValid() {
			in, null := resolve(in)
			if null || !id[k].set(in) {
				return false
			}
		} else if n.of[k] != nil {
			id[k] = scalar{present: true, text: *n.of[k]}
		}
		some = some || id[k].present
	}
	return some
}

const exact = 1 << 53 // integers below this are exact in JSON

func (s *scalar) set(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		*s = scalar{present: true, text: v.String()}
		return utf8.ValidString(s.text) // upstream's encoding of invalid UTF-8 is not stable
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		*s = scalar{present: true, number: true, n: v.Int()}
		return -exact < s.n && s.n < exact
	}
	return false
}

// compare implements upstream's order of items. If an item lacks a key field, the names of its key fields decide.
func (id *identity) compare(to *identity) int {
	for i := range id {
		a, b := &id[i], &to[i]
		if a.present != b.present {
			return id.lacking(to, i)
		}
		if a.number != b.number {
			if a.number {
				return -1
			}
			return 1
		}
		if c := cmp.Or(cmp.Compare(a.n, b.n), strings.Compare(a.text, b.text)); c != 0 {
			return c
		}
	}
	return 0
}

// lacking compares identities of which one lacks key field i. The other is smaller if the first has a later key
// field, and greater if it has none.
func (id *identity) lacking(to *identity, i int) int {
	if !id[i].present {
		return -to.lacking(id, i)
	}
	for k := i + 1; k < maxKeys; k++ {
		if to[k].present {
			return -1
		}
	}
	return 1
}
