package v1alpha1

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// agree checks that scan reads a template, if it is valid JSON as all stored ones are, in the same way as a parser.
func agree(t *testing.T, template []byte) {
	t.Helper()
	if !json.Valid(template) {
		return
	}
	got, ok := scan(template)
	if !ok {
		return
	}
	var h header
	require.NoError(t, json.Unmarshal(template, &h), "%s", template)
	require.Equal(t,
		Target{APIVersion: h.APIVersion, Kind: h.Kind, Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}, got, "%s",
		template)
}

var templates = map[string]bool{ // whether scan reads the template
	`{"apiVersion":"v1","data":{"a":"}\\\"]{","b":"[1,2"},"kind":"ConfigMap","metadata":{"labels":{"name":"x","namespace":"y"},"name":"n","namespace":"s"}}`: true,
	` { "kind" : "K" , "apiVersion":"a/v1", "metadata": {"name": "n"} , "list":[[{"kind":1}],[]], "n":-1.5e3,"t":true,"z":null}`:                             true,
	`{"metadata":{"name":"n"},"spec":{}}`:                    true,
	`{"metadata":{},"kind":"K"}`:                             true,
	`{"kind":"K"}`:                                           false,
	`{"Kind":"K","metadata":{"name":"n"}}`:                   false,
	`{"kind":"K","metadata":{"name":"n","Name":"m"}}`:        false,
	`{"kind":"K","kind":"L","metadata":{}}`:                  false,
	`{"metadata":{"name":"n"},"metadata":{"namespace":"n"}}`: false,
	`{"\u006bind":"K","metadata":{}}`:                        false,
	`{"kind":"\u004b","metadata":{}}`:                        false,
	`{"kind":null,"metadata":{}}`:                            false,
	`{"kind":"K","metadata":null}`:                           false,
	`[]`:                                                     false,
	``:                                                       false,
}

func TestTemplatesAreScanned(t *testing.T) {
	for text, reads := range templates {
		_, ok := scan([]byte(text))
		require.Equal(t, reads, ok, text)
		agree(t, []byte(text))
	}
}

func FuzzTemplatesAreScanned(f *testing.F) {
	for text := range templates {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, template []byte) { agree(t, template) })
}

func BenchmarkTargetOf(b *testing.B) {
	r := &Resource{}
	r.Spec.Template.Raw = []byte(
		`{"apiVersion":"v1","data":{"settings":"log=info\\nregion=eu-west\\nreplicas=3\\ncache=on\\n","url":"https://many-00001.example.com/","value":"1"},"kind":"ConfigMap","metadata":{"labels":{"app":"bench","tier":"front"},"name":"many-00001","namespace":"bench"}}`)
	for b.Loop() {
		TargetOf(r)
	}
}
