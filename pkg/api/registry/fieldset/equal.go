package fieldset

import (
	"bytes"
	"reflect"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// equality compares two values of one type by their JSON form. Pointers have been dereferenced, and are never nil.
type equality func(w *walk, a, b reflect.Value) bool

// equalities caches the equality of each type, separately for values inside and outside of lists. Upstream compares
// lists as Go values, in which nil and empty fields differ; elsewhere, fields that are omitted from JSON are equal.
type equalities map[typePlace]*equality

type typePlace struct {
	reflect.Type
	listed bool
}

var (
	timeType     = reflect.TypeFor[metav1.Time]()
	microType    = reflect.TypeFor[metav1.MicroTime]()
	quantityType = reflect.TypeFor[resource.Quantity]()
)

// of returns the equality of a type, or nil if built-in kinds have no such type.
func (m equalities) of(t reflect.Type, listed bool) equality {
	place := typePlace{t, listed}
	if known := m[place]; known != nil { // of a recursive type it may not be complete yet
		return func(w *walk, a, b reflect.Value) bool { return (*known)(w, a, b) }
	}
	slot := new(equality)
	m[place] = slot
	*slot = m.make(t, listed)
	if *slot == nil {
		delete(m, place)
	}
	return *slot
}

func (m equalities) make(t reflect.Type, listed bool) equality {
	switch t {
	case timeType:
		return func(_ *walk, a, b reflect.Value) bool {
			x, y := a.Interface().(metav1.Time), b.Interface().(metav1.Time)
			return x.IsZero() == y.IsZero() && x.Unix() == y.Unix()
		}
	case microType:
		return func(_ *walk, a, b reflect.Value) bool {
			x, y := a.Interface().(metav1.MicroTime), b.Interface().(metav1.MicroTime)
			return x.IsZero() == y.IsZero() && x.UnixMicro() == y.UnixMicro()
		}
	case quantityType:
		return func(_ *walk, a, b reflect.Value) bool {
			x, y := a.Interface().(resource.Quantity), b.Interface().(resource.Quantity)
			return x.String() == y.String()
		}
	}
	if e := value.TypeReflectEntryOf(t); e.CanConvertToUnstructured() && !(listed && t.Kind() == reflect.Pointer) {
		return func(w *walk, a, b reflect.Value) bool {
			x, err := e.ToUnstructured(a)
			y, err2 := e.ToUnstructured(b)
			if err != nil || err2 != nil {
				w.odd = true
				return false
			}
			return value.Equals(value.NewValueInterface(x), value.NewValueInterface(y))
		}
	}
	switch t.Kind() {
	case reflect.String:
		return func(_ *walk, a, b reflect.Value) bool { return a.String() == b.String() }
	case reflect.Bool:
		return func(_ *walk, a, b reflect.Value) bool { return a.Bool() == b.Bool() }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(_ *walk, a, b reflect.Value) bool { return a.Int() == b.Int() }
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return func(_ *walk, a, b reflect.Value) bool { return a.Uint() == b.Uint() }
	case reflect.Float32, reflect.Float64:
		return func(_ *walk, a, b reflect.Value) bool { return a.Float() == b.Float() }
	case reflect.Pointer:
		return m.pointer(t, listed)
	case reflect.Struct:
		return m.structure(t, listed)
	case reflect.Slice:
		return m.slice(t)
	case reflect.Map:
		return m.mapping(t, listed)
	}
	return nil
}

func (m equalities) pointer(t reflect.Type, listed bool) equality {
	in := m.of(t.Elem(), listed)
	if in == nil {
		return nil
	}
	return func(w *walk, a, b reflect.Value) bool {
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		return in(w, a.Elem(), b.Elem())
	}
}

func (m equalities) structure(t reflect.Type, listed bool) equality {
	all := value.TypeReflectEntryOf(t).OrderedFields()
	in := make([]equality, len(all))
	for i, f := range all {
		if in[i] = m.of(fieldType(t, f), listed); in[i] == nil {
			return nil
		}
	}
	return func(w *walk, a, b reflect.Value) bool {
		for i, f := range all {
			x, y := f.GetFrom(a), f.GetFrom(b)
			no, no2 := !listed && f.CanOmit(x), !listed && f.CanOmit(y)
			if no != no2 || !no && !in[i](w, x, y) {
				return false
			}
		}
		return true
	}
}

func (m equalities) slice(t reflect.Type) equality {
	if t.Elem().Kind() == reflect.Uint8 {
		return func(_ *walk, a, b reflect.Value) bool {
			return a.IsNil() == b.IsNil() && bytes.Equal(a.Bytes(), b.Bytes())
		}
	}
	in := m.of(t.Elem(), true)
	if in == nil {
		return nil
	}
	return func(w *walk, a, b reflect.Value) bool {
		if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
			return false
		}
		for i := range a.Len() {
			if !in(w, a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
}

func (m equalities) mapping(t reflect.Type, listed bool) equality {
	in := m.of(t.Elem(), listed)
	if in == nil || t.Key().Kind() != reflect.String {
		return nil
	}
	return func(w *walk, a, b reflect.Value) bool {
		if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
			return false
		}
		for all := a.MapRange(); all.Next(); {
			other := b.MapIndex(all.Key())
			if !other.IsValid() || !in(w, all.Value(), other) {
				return false
			}
		}
		return true
	}
}
