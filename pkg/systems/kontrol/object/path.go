package object

import (
	"maps"
	"reflect"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// Lookup returns the value of a field.
func Lookup(o any, p fieldpath.Path) (any, bool) {
	for _, e := range p {
		i, ok := find(o, e)
		if !ok {
			return nil, false
		}
		switch c := o.(type) {
		case map[string]any:
			o = c[*e.FieldName]
		case []any:
			o = c[i]
		}
	}
	return o, true
}

// find reports whether a map or list has an element, and returns its index in the list.
func find(o any, e fieldpath.PathElement) (int, bool) {
	switch c := o.(type) {
	case map[string]any:
		if e.FieldName == nil {
			return 0, false
		}
		_, ok := c[*e.FieldName]
		return 0, ok
	case []any:
		for i := range c {
			if element(c[i], i, e) {
				return i, true
			}
		}
	}
	return 0, false
}

func element(o any, i int, e fieldpath.PathElement) bool {
	switch {
	case e.Index != nil:
		return *e.Index == i
	case e.Value != nil:
		return value.Equals(value.NewValueInterface(o), *e.Value)
	case e.Key != nil:
		m, ok := o.(map[string]any)
		if !ok {
			return false
		}
		for _, f := range *e.Key {
			v, ok := m[f.Name]
			if !ok || !value.Equals(value.NewValueInterface(v), f.Value) {
				return false
			}
		}
		return true
	}
	return false
}

// Remove returns a copy of the object without a field, or the object itself if it has no such field.
func Remove(o map[string]any, p fieldpath.Path) map[string]any {
	out, _ := remove(o, p).(map[string]any)
	return out
}

func remove(o any, p fieldpath.Path) any {
	i, ok := find(o, p[0])
	if !ok {
		return o
	}
	switch c := o.(type) {
	case map[string]any:
		out := make(map[string]any, len(c))
		maps.Copy(out, c)
		if len(p) == 1 {
			delete(out, *p[0].FieldName)
		} else {
			out[*p[0].FieldName] = remove(c[*p[0].FieldName], p[1:])
		}
		return out
	case []any:
		out := append([]any{}, c...)
		if len(p) == 1 {
			return append(out[:i], out[i+1:]...)
		}
		out[i] = remove(c[i], p[1:])
		return out
	}
	return o
}

// Strip returns a copy of the object without the fields that steps select.
func Strip(o map[string]any, steps []kontrol.PathStep) map[string]any {
	out, _ := strip(o, steps).(map[string]any)
	return out
}

func strip(o any, steps []kontrol.PathStep) any {
	if len(steps) == 0 {
		return o
	}
	switch c := o.(type) {
	case map[string]any:
		out := make(map[string]any, len(c))
		for k, v := range c {
			switch {
			case !steps[0].Any && (steps[0].Name == nil || *steps[0].Name != k):
				out[k] = v
			case len(steps) > 1:
				out[k] = strip(v, steps[1:])
			}
		}
		return out
	case []any:
		out := make([]any, 0, len(c))
		for i, v := range c {
			switch {
			case !stepIs(steps[0], v, i):
				out = append(out, v)
			case len(steps) > 1:
				out = append(out, strip(v, steps[1:]))
			}
		}
		return out
	}
	return o
}

// Only returns the part of an object that steps select, with the keys of the list elements around it; nil if there is
// none.
func Only(o any, steps []kontrol.PathStep) any {
	if len(steps) == 0 {
		return o
	}
	switch c := o.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, v := range c {
			if steps[0].Any || steps[0].Name != nil && *steps[0].Name == k {
				if part := Only(v, steps[1:]); part != nil {
					out[k] = part
				}
			}
		}
		if len(out) > 0 {
			return out
		}
	case []any:
		var out []any
		for i, v := range c {
			if !stepIs(steps[0], v, i) {
				continue
			}
			part := Only(v, steps[1:])
			if m, ok := part.(map[string]any); ok && len(steps) > 1 {
				whole, _ := v.(map[string]any)
				for k, value := range whole {
					if _, key := steps[0].Keys[k]; key || k == "name" {
						m[k] = value
					}
				}
			}
			if part != nil {
				out = append(out, part)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

func stepIs(s kontrol.PathStep, o any, i int) bool {
	switch {
	case s.Any:
		return true
	case s.Index != nil:
		return *s.Index == i
	case s.Value != nil:
		return same(s.Value, o)
	case s.Keys != nil:
		m, ok := o.(map[string]any)
		for k, v := range s.Keys {
			if !ok || !same(v, m[k]) {
				return false
			}
		}
		return ok
	}
	return false
}

// same compares scalars, and int64 with float64 by value.
func same(a, b any) bool {
	number := func(v any) any {
		if n, ok := v.(int64); ok {
			return float64(n)
		}
		return v
	}
	return reflect.DeepEqual(number(a), number(b))
}

// Matches reports whether steps select a field or one that contains it.
func Matches(steps []kontrol.PathStep, p fieldpath.Path) bool {
	if len(steps) > len(p) {
		return false
	}
	for i, s := range steps {
		if !stepMatches(s, p[i]) {
			return false
		}
	}
	return true
}

func stepMatches(s kontrol.PathStep, e fieldpath.PathElement) bool {
	switch {
	case s.Any:
		return true
	case s.Name != nil:
		return e.FieldName != nil && *e.FieldName == *s.Name
	case s.Index != nil:
		return e.Index != nil && *e.Index == *s.Index
	case s.Value != nil:
		return e.Value != nil && same(s.Value, (*e.Value).Unstructured())
	case s.Keys != nil && e.Key != nil:
		for k, v := range s.Keys {
			found := false
			for _, f := range *e.Key {
				found = found || f.Name == k && same(v, f.Value.Unstructured())
			}
			if !found {
				return false
			}
		}
		return true
	}
	return false
}
