package registry

import (
	"reflect"
	"strings"
	"sync"
)

// empties brings objects into the form that decoding their protobuf gives. Protobuf does not distinguish an empty list
// or map from a missing one, and inside a list or map it has no missing lists or bytes. JSON does, in fields that it
// shows although they are empty: without this, clients would see [] until the server restarts and null afterwards,
// under one resourceVersion. Upstream answers null from the create on.
type empties struct{ fields sync.Map } // struct type to []field

// emptiesField is a field that is or contains such a list or map.
type emptiesField struct {
	index    int
	required bool // JSON shows the field even if it is empty
}

// clear changes an object in place. It writes only where the form differs, so objects that have the form may be shared.
func (e *empties) clear(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			e.clear(v.Elem())
		}
	case reflect.Struct:
		for _, f := range e.of(v.Type()) {
			field := v.Field(f.index)
			if f.required && !field.IsNil() && field.Len() == 0 {
				field.SetZero()
				continue
			}
			e.clear(field)
		}
	case reflect.Slice:
		if e.contains(v.Type(), nil) {
			for i := range v.Len() {
				e.element(v.Index(i))
			}
		}
	case reflect.Map:
		if e.contains(v.Type(), nil) {
			e.mapping(v)
		}
	}
}

func (e *empties) element(v reflect.Value) {
	if v.Kind() == reflect.Slice && v.IsNil() {
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		return
	}
	e.clear(v)
}

// mapping changes the values of a map, which cannot be changed in place.
func (e *empties) mapping(v reflect.Value) {
	bytes := isBytes(v.Type().Elem())
	for all := v.MapRange(); all.Next(); {
		if bytes && !all.Value().IsNil() {
			continue // most values of Secrets
		}
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(all.Value())
		e.element(value)
		v.SetMapIndex(all.Key(), value)
	}
}

// of returns the fields of a struct that clear has to visit.
func (e *empties) of(t reflect.Type) []emptiesField {
	if known, ok := e.fields.Load(t); ok {
		return known.([]emptiesField)
	}
	var out []emptiesField
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || f.Tag.Get("json") == "-" {
			continue
		}
		required := isRequiredList(f)
		if required || e.contains(f.Type, map[reflect.Type]bool{t: true}) {
			out = append(out, emptiesField{i, required})
		}
	}
	e.fields.Store(t, out)
	return out
}

// contains reports whether clear may change values of a type. within are the enclosing structs: recursion counts.
func (e *empties) contains(t reflect.Type, within map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer:
		return e.contains(t.Elem(), within)
	case reflect.Slice, reflect.Map:
		return t.Elem().Kind() == reflect.Slice || e.contains(t.Elem(), within)
	case reflect.Struct:
	default:
		return false
	}
	if known, ok := e.fields.Load(t); ok {
		return len(known.([]emptiesField)) > 0
	}
	if within[t] {
		return true
	}
	if within == nil {
		return len(e.of(t)) > 0
	}
	within[t] = true
	defer delete(within, t)
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("json") != "-" &&
			(isRequiredList(f) || e.contains(f.Type, within)) {
			return true
		}
	}
	return false
}

func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

func isRequiredList(f reflect.StructField) bool {
	k := f.Type.Kind()
	if k != reflect.Map && k != reflect.Slice || isBytes(f.Type) {
		return false
	}
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero")
}
