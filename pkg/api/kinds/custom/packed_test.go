package custom

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// large returns a definition that has every field, and two versions whose schemas have n properties.
func large(n int) *apiextensionsv1.CustomResourceDefinition {
	properties := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range n {
		properties[fmt.Sprintf("p%d", i)] = apiextensionsv1.JSONSchemaProps{
			Type: "array", Description: fmt.Sprintf("What a controller does with <%d> & what happens where it is empty.", i),
			Items: &apiextensionsv1.JSONSchemaPropsOrArray{
				Schema: &apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: ptr.To(int64(i))},
			},
			Default: &apiextensionsv1.JSON{Raw: []byte(`["<a>",1.0]`)},
		}
	}
	schema := func() *apiextensionsv1.CustomResourceValidation {
		return &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties,
				XValidations: apiextensionsv1.ValidationRules{{Rule: "self.p0.size() < 3", Message: "few"}}},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "boats.example.com", UID: types.UID("u"), ResourceVersion: "7", Labels: map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Kind: "Boat"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{
					Name: "v1", Served: true, Storage: true, Schema: schema(),
					Subresources: &apiextensionsv1.CustomResourceSubresources{
						Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
					},
					AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
						{Name: "n", Type: "string", JSONPath: ".spec"},
					},
					SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.x"}},
				},
				{Name: "v1alpha1", Served: true, Deprecated: true, DeprecationWarning: ptr.To("old"), Schema: schema()},
				{Name: "v0"},
			},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			StoredVersions: []string{"v1"},
			Conditions:     []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established}},
		},
	}
}

// A definition's stored and served encodings do not depend on the form in which the cache holds it.
func TestPackedDefinitionsEncodeAsUpstreams(t *testing.T) {
	for _, crd := range []*apiextensionsv1.CustomResourceDefinition{large(50), large(0), {}} {
		before := crd.DeepCopy()
		p, ok := pack(crd).(*packed)
		require.True(t, ok)
		require.Equal(t, before, crd, "the definition was changed")
		want, err := json.Marshal(crd)
		require.NoError(t, err)
		have, err := json.Marshal(p)
		require.NoError(t, err)
		require.Equal(t, string(want), string(have))
		have, err = json.Marshal(unpack(p))
		require.NoError(t, err)
		require.Equal(t, string(want), string(have))
		have, err = json.Marshal(p.DeepCopyObject())
		require.NoError(t, err)
		require.Equal(t, string(want), string(have))
	}
}

func TestPackedDefinitionsAreSmall(t *testing.T) {
	crd := large(300)
	text, err := json.Marshal(crd)
	require.NoError(t, err)
	p := pack(crd).(*packed)
	require.Less(t, len(p.schemas), len(text)/5)
	for _, v := range p.spec.Versions {
		require.Nil(t, v.Schema)
	}
	require.Less(t, p.Size(), len(text)/3)
}
