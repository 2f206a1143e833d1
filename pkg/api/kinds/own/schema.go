package own

import (
	"encoding/json"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Schema is a part of a definition's schema.
type Schema = apiextensionsv1.JSONSchemaProps

// Adjust changes the schema at a path of fields such as spec.windows.[].kind, where [] means any element of a list.
// It panics if the schema does not have the path.
func Adjust(s *Schema, path string, changes ...func(*Schema)) {
	adjust(s, strings.Split(path, "."), changes)
}

func adjust(s *Schema, path []string, changes []func(*Schema)) {
	switch {
	case len(path) == 0:
		for _, change := range changes {
			change(s)
		}
	case path[0] == "[]":
		adjust(s.Items.Schema, path[1:], changes)
	default:
		sub, ok := s.Properties[path[0]]
		if !ok {
			panic("the schema has no field " + path[0])
		}
		adjust(&sub, path[1:], changes)
		s.Properties[path[0]] = sub
	}
}

// OneOf restricts a string to values.
func OneOf[T ~string](values ...T) func(*Schema) {
	return func(s *Schema) {
		for _, v := range values {
			s.Enum = append(s.Enum, literal(v))
		}
	}
}

// WithDefault sets the default. v must encode to the field's JSON.
func WithDefault(v any) func(*Schema) {
	return func(s *Schema) { s.Default = new(literal(v)) }
}

// WithRule adds a CEL rule. A violation is reported with message.
func WithRule(rule, message string) func(*Schema) {
	return func(s *Schema) {
		s.XValidations = append(s.XValidations, apiextensionsv1.ValidationRule{Rule: rule, Message: message})
	}
}

// WithNames limits the names of objects; use it on the field metadata. An empty pattern allows all names.
func WithNames(most int64, pattern string) func(*Schema) {
	return func(s *Schema) {
		s.Properties = map[string]Schema{"name": {Type: "string", MaxLength: &most, Pattern: pattern}}
	}
}

func literal(v any) apiextensionsv1.JSON {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // callers pass constants
	}
	return apiextensionsv1.JSON{Raw: raw}
}
