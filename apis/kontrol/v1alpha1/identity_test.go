package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestTargetOf checks that the identity is read from the same fields that validateTemplate checks: encoding/json would
// also accept other cases of their names.
func TestTargetOf(t *testing.T) {
	for text, want := range map[string]Target{
		`{"apiVersion":"v1","data":{"a":"}\\\"]{","kind":"X"},"kind":"ConfigMap","metadata":{"labels":{"name":"x"},` +
			`"name":"n","namespace":"s"}}`: {APIVersion: "v1", Kind: "ConfigMap", Namespace: "s", Name: "n"},
		` { "\u006bind" : "\u004b" , "metadata": {"name": "n"}, "list":[[{"kind":1}],[]], "n":-1.5e3}`: {
			Kind: "K", Name: "n",
		},
		`{"Kind":"K","metadata":{"name":"n","Name":"m"}}`: {Name: "n"},
		`{"kind":null,"metadata":null}`:                   {},
		`[]`:                                              {},
		``:                                                {},
	} {
		r := &Resource{Spec: ResourceSpec{Template: runtime.RawExtension{Raw: []byte(text)}}}
		require.Equal(t, want, TargetOf(r), text)
	}
}

func BenchmarkTargetOf(b *testing.B) {
	r := &Resource{}
	r.Spec.Template.Raw = []byte(`{"apiVersion":"v1","data":{"settings":"log=info\\nregion=eu-west\\nreplicas=3\\n",` +
		`"url":"https://many-00001.example.com/","value":"1"},"kind":"ConfigMap","metadata":{"labels":{"app":"bench",` +
		`"tier":"front"},"name":"many-00001","namespace":"bench"}}`)
	for b.Loop() {
		TargetOf(r)
	}
}
