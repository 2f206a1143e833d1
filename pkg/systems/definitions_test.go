package systems

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

func definitions() (list []*apiextensionsv1.CustomResourceDefinition) {
	for _, s := range All() {
		if s.Operator != nil {
			list = append(list, own.CustomResources(s.Kinds)...)
		}
	}
	return list
}

// TestDefinitionsAreValid checks that upstream's API server accepts our CustomResourceDefinitions, including the
// cost of their rules.
func TestDefinitionsAreValid(t *testing.T) {
	for _, d := range definitions() {
		d = d.DeepCopy()
		apiextensionsv1.SetDefaults_CustomResourceDefinition(d)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
		d.Status.StoredVersions = []string{d.Spec.Versions[0].Name}
		var internal apiextensions.CustomResourceDefinition
		require.NoError(t,
			apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d, &internal, nil))
		require.Empty(t, validation.ValidateCustomResourceDefinition(t.Context(), &internal), d.Name)
	}
}
