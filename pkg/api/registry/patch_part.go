package registry

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// A strategic merge patch changes the fields that it names, which are Go fields. So only these are converted to maps,
// merged and converted back: of a pod whose status is patched, neither the specification nor most of the metadata.

// part returns an object of old's type with the fields that a strategic merge patch names, sharing memory with old.
// Other fields are empty.
func part(old runtime.Object, patch map[string]any) runtime.Object {
	from := reflect.ValueOf(old).Elem()
	out := reflect.New(from.Type())
	copyNamed(out.Elem(), from, patch)
	return out.Interface().(runtime.Object)
}

// graft sets out, an empty object, to a copy of old with the fields that the patch names taken from merged.
func graft(out, old, merged runtime.Object, patch map[string]any) {
	into := reflect.ValueOf(out).Elem()
	into.Set(reflect.ValueOf(old.DeepCopyObject()).Elem())
	copyNamed(into, reflect.ValueOf(merged).Elem(), patch)
}

// copyNamed copies the fields that a patch names from struct from to struct to. In merged structs it does the same with
// their fields.
func copyNamed(to, from reflect.Value, patch map[string]any) {
	all := patchFieldsOf(to.Type())
	if !all.covers(patch) {
		to.Set(from)
		return
	}
	for name, v := range patch {
		f, ok := all[fieldName(name)]
		if !ok {
			continue // the decoder reports it
		}
		in, out := from.FieldByIndex(f.index), to.FieldByIndex(f.index)
		nested, isMap := v.(map[string]any)
		if isMap && f.merged && in.Kind() == reflect.Pointer && !in.IsNil() {
			if out.IsNil() {
				out.Set(reflect.New(in.Type().Elem()))
			}
			in, out = in.Elem(), out.Elem()
		}
		if isMap && f.merged && in.Kind() == reflect.Struct {
			copyNamed(out, in, nested)
		} else {
			out.Set(in)
		}
	}
}

type patchField struct {
	index  []int
	merged bool // a struct whose fields are merged, rather than a value that is replaced
}

// patchFields are the fields of a struct by their JSON names.
type patchFields map[string]patchField

// covers reports whether a patch changes only the fields that it names. Directives for a whole object, such as
// $patch, change other fields. Directives for one field apply to lists.
func (all patchFields) covers(patch map[string]any) bool {
	for name := range patch {
		if !strings.HasPrefix(name, "$") {
			continue
		}
		if f, ok := all[fieldName(name)]; !ok || f.merged {
			return false
		}
	}
	return true
}

func fieldName(key string) string {
	for _, directive := range []string{"$setElementOrder/", "$deleteFromPrimitiveList/"} {
		if name, ok := strings.CutPrefix(key, directive); ok {
			return name
		}
	}
	return key
}

var patchFieldsByType sync.Map // reflect.Type to patchFields; only types of the built-in kinds

func patchFieldsOf(t reflect.Type) patchFields {
	if known, ok := patchFieldsByType.Load(t); ok {
		return known.(patchFields)
	}
	all := patchFields{}
	all.add(t, nil)
	patchFieldsByType.Store(t, all)
	return all
}

func (all patchFields) add(t reflect.Type, at []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		index := append(slices.Clip(at), i)
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			all.add(f.Type, index)
		case name != "" && name != "-":
			all[name] = patchField{index, mergedAsStruct(f, options)}
		}
	}
}

// mergedAsStruct reports whether a field is a struct, or a pointer to one, whose JSON consists of its fields. It
// excludes fields with omitzero: with only some of its fields set, such a struct could seem absent.
func mergedAsStruct(f reflect.StructField, options string) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Struct && !strings.Contains(f.Tag.Get("patchStrategy"), "replace") &&
		!strings.Contains(options, "omitzero") &&
		!p.Implements(reflect.TypeFor[json.Marshaler]()) &&
		!p.Implements(reflect.TypeFor[json.Unmarshaler]()) && !p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
