package custom

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

const (
	// fewValues is the number of values, with those in them, up to which a part of an object is validated at once.
	fewValues = 200
	// enoughErrors is the number of errors after which no further part is validated.
	enoughErrors = 100
)

// validator is upstream's schema validator, which compares each error with all errors before it: a list of 20,000
// values that are not in an enumeration took 6 s, and 200,000 would take ten minutes. So the parts of a large object
// are validated first, one after the other. Only if they have no errors is the whole object validated.
type validator struct {
	validation.SchemaValidator
	schema *spec.Schema
}

func newValidator(in *apiextensions.JSONSchemaProps) (validation.SchemaValidator, error) {
	v, schema, err := validation.NewSchemaValidator(in)
	return validator{v, schema}, err
}

func (v validator) Validate(now any, options ...validation.ValidationOption) *validate.Result {
	if found := inParts(now, v.schema); !found.IsValid() {
		return found
	}
	return v.SchemaValidator.Validate(now, options...)
}

// ValidateUpdate accepts errors in parts that did not change, so parts are validated only if the old object is valid.
func (v validator) ValidateUpdate(now, old any, options ...validation.ValidationOption) *validate.Result {
	if found := inParts(now, v.schema); !found.IsValid() && inParts(old, v.schema).IsValid() {
		return found
	}
	return v.SchemaValidator.ValidateUpdate(now, old, options...)
}

func inParts(value any, schema *spec.Schema) *validate.Result {
	p := parts{compiled: map[*spec.Schema]validation.SchemaValidator{}}
	if count(value, fewValues+1) > fewValues {
		p.split(value, schema, "")
	}
	return &p.found
}

type parts struct {
	compiled map[*spec.Schema]validation.SchemaValidator
	found    validate.Result
}

// split validates the parts of a list or object.
func (p *parts) split(value any, schema *spec.Schema, path string) {
	switch v := value.(type) {
	case []any:
		if schema.Items == nil || schema.Items.Schema == nil {
			return
		}
		for i := range v {
			p.part(v[i], schema.Items.Schema, func() string { return fmt.Sprintf("%s[%d]", path, i) })
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			in := property(schema, key)
			if in != nil {
				p.part(v[key], in, func() string { return path + "." + key })
			}
		}
	}
}

func property(schema *spec.Schema, key string) *spec.Schema {
	if in, ok := schema.Properties[key]; ok {
		return &in
	}
	if schema.AdditionalProperties != nil {
		return schema.AdditionalProperties.Schema
	}
	return nil
}

func (p *parts) part(value any, schema *spec.Schema, path func() string) {
	switch {
	case len(p.found.Errors) >= enoughErrors:
	case count(value, fewValues+1) > fewValues:
		p.split(value, schema, path())
	default:
		known := p.compiled[schema]
		if known == nil {
			known = validation.NewSchemaValidatorFromOpenAPI(schema)
			p.compiled[schema] = known
		}
		if !known.Validate(value).IsValid() {
			p.found.AddErrors(validate.NewSchemaValidator(schema, nil, path(), strfmt.Default).Validate(value).Errors...)
		}
	}
}

// count returns the number of values in a value, itself included, or most if there are more.
func count(value any, most int) int {
	n := 1
	switch v := value.(type) {
	case []any:
		for i := 0; i < len(v) && n < most; i++ {
			n += count(v[i], most-n)
		}
	case map[string]any:
		for _, in := range v {
			if n += count(in, most-n); n >= most {
				break
			}
		}
	}
	return n
}
