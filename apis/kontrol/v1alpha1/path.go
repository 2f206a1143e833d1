package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Bounds of a path.
const (
	maxPath  = 512 // bytes
	maxSteps = 64
)

// PathStep is a step of a path. Exactly one field is set.
//
// +kubebuilder:object:generate=false
type PathStep struct {
	Name  *string        // a field, or a key of a map
	Any   bool           // any element or key
	Index *int           // an element of a list, by index
	Keys  map[string]any // an element of a list, by values of its fields: string, bool or float64
	Value any            // an element of a list of scalars, by value
}

// ParsePath parses the path of a field: spec.replicas, metadata.annotations["a.b/c"],
// spec.template.spec.containers[name="app"].image, metadata.finalizers[="x"], spec.rules[0] or spec.rules[*].
func ParsePath(text string) ([]PathStep, error) {
	if len(text) > maxPath {
		return nil, fmt.Errorf("has more than %d bytes", maxPath)
	}
	rest := text
	if !strings.HasPrefix(rest, ".") && !strings.HasPrefix(rest, "[") {
		rest = "." + rest
	}
	var steps []PathStep
	for rest != "" {
		if len(steps) == maxSteps {
			return nil, fmt.Errorf("has more than %d steps", maxSteps)
		}
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			name := rest[1 : end+1]
			if name == "" || strings.Contains(name, "]") {
				return nil, errors.New("has an empty step, or a ] without its [")
			}
			steps, rest = append(steps, PathStep{Name: &name}), rest[end+1:]
			continue
		}
		if rest[0] != '[' {
			return nil, fmt.Errorf("needs a . or [ before %q", rest)
		}
		step, after, err := bracket(rest[1:])
		if err != nil {
			return nil, err
		}
		steps, rest = append(steps, step), after
	}
	if len(steps) == 0 {
		return nil, errors.New("is empty")
	}
	return steps, nil
}

// bracket parses the text after "[" and returns the text after the matching "]".
func bracket(text string) (step PathStep, rest string, err error) {
	if after, ok := strings.CutPrefix(text, "*]"); ok {
		return PathStep{Any: true}, after, nil
	}
	if after, ok := strings.CutPrefix(text, "="); ok {
		if step.Value, rest, err = scalar(after); err != nil {
			return step, "", err
		}
		return step, strings.TrimPrefix(rest, "]"), closed(rest)
	}
	if text != "" && (text[0] == '"' || text[0] >= '0' && text[0] <= '9') {
		v, after, err := scalar(text)
		if err != nil {
			return step, "", err
		}
		switch v := v.(type) {
		case string:
			step.Name = &v
		case float64:
			n := int(v)
			if float64(n) != v || n < 0 {
				return step, "", fmt.Errorf("%v is no index", v)
			}
			step.Index = &n
		}
		return step, strings.TrimPrefix(after, "]"), closed(after)
	}
	step.Keys = map[string]any{}
	for {
		name, after, ok := strings.Cut(text, "=")
		if !ok || name == "" || strings.ContainsAny(name, `"[].`) {
			return step, "", errors.New(`needs [*], [0], ["key"], [="value"] or [name="value"]`)
		}
		if step.Keys[name], rest, err = scalar(after); err != nil {
			return step, "", err
		}
		next, more := strings.CutPrefix(rest, ",")
		if !more {
			return step, strings.TrimPrefix(rest, "]"), closed(rest)
		}
		text = next
	}
}

func closed(rest string) error {
	if !strings.HasPrefix(rest, "]") {
		return errors.New("has a [ without its ]")
	}
	return nil
}

// scalar parses a JSON string, number or boolean at the beginning of text.
func scalar(text string) (v any, rest string, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	if text == "" || strings.ContainsAny(text[:1], "{[") || d.Decode(&v) != nil || v == nil {
		return nil, "", fmt.Errorf("needs a quoted string, a number or a boolean before %q", text)
	}
	return v, text[d.InputOffset():], nil
}
