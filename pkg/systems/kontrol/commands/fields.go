package commands

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// fieldSet is a set of fields in the format of managed fields (FieldsV1): f:NAME is a field; k:KEYS, v:VALUE and
// i:INDEX are list elements; a dot is the containing value itself.
type fieldSet = map[string]any

func fieldsOf(m metav1.ManagedFieldsEntry) fieldSet {
	var out fieldSet
	if m.FieldsV1 == nil || utiljson.Unmarshal(m.FieldsV1.GetRawBytes(), &out) != nil {
		return nil
	}
	return out
}

// inner reports whether the set selects fields inside a value, and not the whole value.
func inner(f fieldSet) bool {
	for k := range f {
		if k != "." {
			return true
		}
	}
	return false
}

// elementOf returns the index of the list element for a key such as k:{"name":"a"}, and its key fields; -1 if
// there is none.
func elementOf(list []any, key string) (int, map[string]any) {
	text, isKeys := strings.CutPrefix(key, "k:")
	value, isValue := strings.CutPrefix(key, "v:")
	switch {
	case isKeys:
		var keys map[string]any
		if utiljson.Unmarshal([]byte(text), &keys) != nil {
			return -1, nil
		}
		return slices.IndexFunc(list, func(v any) bool {
			m, _ := v.(map[string]any)
			for k, want := range keys {
				if m == nil || !reflect.DeepEqual(m[k], want) {
					return false
				}
			}
			return len(keys) > 0
		}), keys
	case isValue:
		var want any
		if utiljson.Unmarshal([]byte(value), &want) != nil {
			return -1, nil
		}
		return slices.IndexFunc(list, func(v any) bool { return reflect.DeepEqual(v, want) }), nil
	}
	return -1, nil // managed fields of built-in kinds have no i:INDEX keys
}

// only returns the part of a value that is in a set of fields; nil if that is empty.
func only(v any, f fieldSet) any {
	if !inner(f) {
		return runtime.DeepCopyJSONValue(v)
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, sub := range f {
			name, ok := strings.CutPrefix(key, "f:")
			has, exists := v[name]
			fields, _ := sub.(fieldSet)
			if !ok || !exists {
				continue
			}
			if part := only(has, fields); part != nil {
				out[name] = part
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		parts := map[int]any{}
		for key, sub := range f {
			i, keys := elementOf(v, key)
			if i < 0 {
				continue
			}
			fields, _ := sub.(fieldSet)
			part := only(v[i], fields)
			if m, ok := part.(map[string]any); ok || part == nil && keys != nil {
				if m == nil {
					m = map[string]any{}
				}
				maps.Copy(m, keys)
				part = m
			}
			parts[i] = part
		}
		var out []any
		for i := range v {
			if part, ok := parts[i]; ok {
				out = append(out, part)
			}
		}
		if out == nil {
			return nil
		}
		return out
	}
	return v
}
