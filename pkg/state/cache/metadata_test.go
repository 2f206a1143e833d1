package cache

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// For any content, the metadata cut from the object's encoding equals its own encoding.
func TestMetadata(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := pod("a", rapid.String().Draw(t, "name"), func(p *corev1.Pod) {
			p.Annotations = rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "annotations")
			p.Finalizers = rapid.SliceOf(rapid.String()).Draw(t, "finalizers")
			p.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: rapid.String().Draw(t, "manager"), FieldsV1: metav1.NewFieldsV1(`{"f:a":{"k:{\"name\":\"}{\"}":{}}}`)},
			}
			p.Spec.NodeName = rapid.String().Draw(t, "node")
		})
		p.Kind, p.APIVersion = "Pod", "v1"
		want, err := json.Marshal(p.ObjectMeta)
		require.NoError(t, err)
		require.Equal(t, string(want), string(NewEntry(pods, "", p, 1).Metadata()))
	})
	require.Nil(t,
		NewEntry(pods, "",
			&unstructured.Unstructured{
				Object: map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": map[string]any{"name": "a"}},
			}, 1).Metadata())
}

// Packed objects are not encoded for their metadata: their encoding is large and made anew each time.
func TestMetadataOfPackedObjects(t *testing.T) {
	row := *pods
	row.Pack = func(o client.Object) client.Object { return o }
	p := pod("a", "b")
	p.Kind, p.APIVersion = "Pod", "v1"
	require.NotNil(t, NewEntry(pods, "", p, 1).Metadata())
	require.Nil(t, NewEntry(&row, "", p, 1).Metadata())
}

// Large objects are not encoded for their metadata, but a kept encoding is used.
func TestMetadataOfLargeObjects(t *testing.T) {
	p := pod("a", "b", func(p *corev1.Pod) { p.Spec.NodeName = strings.Repeat("n", maxForMetadata) })
	p.Kind, p.APIVersion = "Pod", "v1"
	e := NewEntry(pods, "", p, 1)
	require.Nil(t, e.Metadata())
	require.False(t, e.keeps(encodingJSON))
	e.JSON()
	require.NotNil(t, e.Metadata())
}

func FuzzObjectLength(f *testing.F) {
	for _, s := range []string{``, `{`, `{}`, `{"a":"}"}x`, `{"a\"":{"b":[{}]}},`, `[{}]`, `"{"`, `{"\\":1}`, `\`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		n := objectLength(raw)
		var first json.RawMessage
		if json.NewDecoder(bytes.NewReader(raw)).Decode(&first) == nil && len(first) > 0 && first[0] == '{' && len(raw) > 0 &&
			raw[0] == '{' {
			require.Equal(t, string(first), string(raw[:n]))
		}
	})
}
