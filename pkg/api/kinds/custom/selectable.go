package custom

import (
	"context"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// checked is upstream's strategy without a panic: upstream's validation of selectable fields panics if a schema has
// no structural form. Such a schema is an error by itself, so checked validates without its selectable fields.
type checked struct{ kind.Strategy }

func (s checked) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	return s.Strategy.Validate(ctx, withoutUnselectable(o))
}

func (s checked) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	return s.Strategy.ValidateUpdate(ctx, withoutUnselectable(o), old)
}

func (s checked) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if r, ok := s.Strategy.(rest.ResetFieldsStrategy); ok {
		return r.GetResetFields()
	}
	return nil
}

// withoutUnselectable returns the definition without selectable fields of schemas that have no structural form.
func withoutUnselectable(o runtime.Object) runtime.Object {
	crd, ok := o.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return o
	}
	out := *crd
	if len(crd.Spec.SelectableFields) > 0 && !isStructural(crd.Spec.Validation) {
		out.Spec.SelectableFields = nil
	}
	for i, v := range crd.Spec.Versions {
		if len(v.SelectableFields) == 0 || isStructural(v.Schema) {
			continue
		}
		if &out.Spec.Versions[0] == &crd.Spec.Versions[0] {
			out.Spec.Versions = slices.Clone(crd.Spec.Versions)
		}
		out.Spec.Versions[i].SelectableFields = nil
	}
	return &out
}

func isStructural(v *apiextensions.CustomResourceValidation) bool {
	if v == nil || v.OpenAPIV3Schema == nil {
		return true // upstream's validation reports it
	}
	_, err := structural.NewStructural(v.OpenAPIV3Schema)
	return err == nil
}
