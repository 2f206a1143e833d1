package storagemigration

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// oneKind is a single kind whose objects are stored in the given version.
type oneKind string

func (k oneKind) Stored() ([]engine.Kind, <-chan struct{}) {
	return []engine.Kind{
		{
			GroupVersionKind: schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Boat"}, Resource: "boats",
			Stored: string(k),
		},
	}, nil
}

// TestNothingIsWrittenInAnOldVersion: a migration waits while its writes would be stored in the old version.
func TestNothingIsWrittenInAnOldVersion(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, apiextensionsv1.AddToScheme(scheme))
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "boats.example.org"}}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
	for name, c := range map[string]struct {
		stored  string
		objects []client.Object
		want    bool
	}{
		"the old version": {"v1", []client.Object{crd}, false},
		"the new version": {"v2", []client.Object{crd}, true},
		"an unknown one":  {"", []client.Object{crd}, true},
		"no definition":   {"v1", nil, true},
		"of another kind": {
			"v1",
			[]client.Object{&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "ships.example.org"}}},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := migration("m", 0)
			r := &reconciler{
				Env:   engine.Env{Cache: fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).Build()},
				kinds: oneKind(c.stored),
			}
			k, found := r.find(m.Spec.Resource)
			require.True(t, found)
			known, err := r.knowsVersion(t.Context(), &m, k)
			require.NoError(t, err)
			require.Equal(t, c.want, known)
			if !known {
				result, err := r.migrate(t.Context(), &m) // without a client: a write would panic
				require.NoError(t, err)
				require.Positive(t, result.RequeueAfter)
			}
		})
	}
}
